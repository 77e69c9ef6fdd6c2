package console

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/hosts"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

type handler struct {
	lockers     func() []*redlock.Locker
	crossOrigin http.CrossOriginProtection
	hosts       []string // "*" is for all
	readOnly    bool
	logger      *slog.Logger
	user        func(*http.Request) string
}

// patience is how long a request to the console may take. A Locker's own timeouts are shorter.
var patience = 5 * time.Second // longer in tests, on machines that are busy

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "same-origin") // not less: Caddy's admin endpoint wants to know the referrer
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if err := h.serve(w, r.WithContext(ctx)); err != nil {
		answer(w, "application/problem+json", err.Status, err)
	}
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) *Problem {
	if !slices.Contains(h.hosts, "*") && !hosts.Knows(r.Host, h.hosts) {
		return problem("unknown_host", http.StatusForbidden, "The console is not known by this host", "Ask it by localhost or an address of loopback, or allow the name in the header Host (console.WithHosts).")
	}
	if err := h.crossOrigin.Check(r); err != nil {
		return problem("cross_site", http.StatusForbidden, "A page of another site has sent the request", err.Error())
	}
	parameters, err := parse(r.URL.RawQuery)
	if err != nil {
		return err
	}
	path := strings.TrimPrefix(r.URL.Path, "/") // it is unescaped: a key may have any byte
	key, isKey := keyOf("locks", path, parameters)
	result, isResult := keyOf("results", path, parameters)
	if err := allow(w, r, isKey, isResult); err != nil {
		return err
	}
	slot, err := slotOf(parameters)
	switch {
	case err != nil:
		return err
	case h.readOnly && r.Method == http.MethodDelete:
		return problem("read_only", http.StatusForbidden, "This console only shows", "Nothing was released or forgotten: ask another console, or use the command line.")
	case max(len(key), len(result), len(parameters["key"])) > redlock.MaxKeyLength:
		return badRequest("A key has at most " + strconv.Itoa(redlock.MaxKeyLength) + " bytes.")
	case (isKey || isResult) && namedTwice(path, parameters):
		return badRequest("The key is named by the path and by the parameter key.")
	case isResult:
		return h.forget(w, r, result)
	case isKey && r.Method == http.MethodDelete:
		return h.release(w, r, key, max(slot, 0), parameters)
	case isKey:
		return h.inspect(w, r, key, slot)
	case path == "":
		return h.page(w, r, parameters, slot)
	case path == "masters":
		return h.masters(w, parameters)
	case path == "processes":
		return h.processes(w, r)
	case strings.TrimSuffix(path, "/") == "locks":
		return h.locks(w, parameters)
	case serveAsset(w, r, path):
		return nil
	}
	return problem("not_found", http.StatusNotFound, "There is nothing here", "There are /, /masters, /processes, /locks, /locks/{key} and /results/{key}.")
}

// keyOf returns the key that a path below a folder names, or the parameter key if the path is the folder.
func keyOf(folder, path string, parameters map[string]string) (key string, ok bool) {
	if key, ok = strings.CutPrefix(path, folder+"/"); ok && key != "" {
		return key, true
	}
	if strings.TrimSuffix(path, "/") == folder {
		key, ok = parameters["key"]
		return key, ok
	}
	return "", false
}

// namedTwice reports whether both the path below a folder and the parameter name a key: one of them would be ignored.
func namedTwice(path string, parameters map[string]string) bool {
	_, below, _ := strings.Cut(path, "/")
	_, also := parameters["key"]
	return below != "" && also
}

func allow(w http.ResponseWriter, r *http.Request, isKey, isResult bool) *Problem {
	allowed := []string{http.MethodGet, http.MethodHead}
	switch {
	case isKey:
		allowed = append(allowed, http.MethodDelete)
	case isResult:
		allowed = []string{http.MethodDelete}
	}
	if slices.Contains(allowed, r.Method) {
		return nil
	}
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	return problem("method", http.StatusMethodNotAllowed, "The method is not allowed here", "Allowed: "+list+".")
}

// parse returns the parameters of the query. A parameter that can't be read, or is given twice, is an error, because otherwise the
// wrong lock could be released.
func parse(query string) (map[string]string, *Problem) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, badRequest("The query can't be read: " + err.Error() + ".")
	}
	parameters := make(map[string]string, len(values))
	for name, all := range values {
		if len(all) > 1 {
			return nil, badRequest("The parameter " + name + " is given more than once.")
		}
		parameters[name] = all[0]
	}
	return parameters, nil
}

func answer(w http.ResponseWriter, contentType string, status int, value any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client may have left
}

func problem(name string, status int, title, detail string) *Problem {
	return &Problem{
		Type:   "https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/console.md#" + name,
		Title:  title,
		Status: status,
		Detail: detail,
	}
}

func badRequest(detail string) *Problem {
	return problem("bad_request", http.StatusBadRequest, "The request is not valid", detail)
}
