package console

import (
	"bytes"
	"context"
	"embed"
	"html/template"
	"net/http"
	"path"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

//go:embed page
var files embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"seconds": seconds,
	"offset":  offset,
	"shown":   shown,
	"runbook": runbook,
	"slotted": slotted,
	"brief":   brief,
	"besides": besides,
	"line":    lineBehind,
	"href":    hrefOf,
	"count":   count,
	"level":   level,
	"size":    size[int],
	"memory":  memory,
	"full":    nearlyFull,
	"clock":   func(t time.Time) string { return t.UTC().Format("15:04:05") },
}).ParseFS(files, "page/page.html"))

// policy allows the page its own style and script, and to ask its own origin. The icon is in the page.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

type view struct {
	Now     time.Time
	Status  Status
	Verdict verdict
	Prefix  string
	After   string
	Sort    string
	Locks   Locks
	Oldest  *inspect.KeyStatus // held for the longest time
	Longest *inspect.KeyStatus // with the longest line of waiting calls

	Processes Processes // that share the masters

	ReadOnly   bool
	Key        string // whose Inspection is shown; empty for the list of keys
	Slot       *int   // of the key, if one was asked for
	Inspection *Inspection
	Problem    *Problem // the reason why there is no Inspection
}

func (v *view) Held() (n int) {
	for _, l := range v.Status.Lockers {
		n += l.Held
	}
	return n
}

func (v *view) Waiting() (n int) {
	for _, l := range v.Status.Lockers {
		n += l.Waiting
	}
	return n
}

// Inspected returns the views of the masters that have answered.
func (v *view) Inspected() []InspectedLocker {
	if v.Problem != nil {
		return v.Problem.Lockers
	}
	return v.Inspection.Lockers
}

// LastKey returns the last key of the page, behind which the next one begins.
func (v *view) LastKey() string { return v.Locks.Locks[len(v.Locks.Locks)-1].Key }

// For returns the seconds since this time.
func (v *view) For(since time.Time) float64 { return max(0, v.Now.Sub(since).Seconds()) }

// Left returns the seconds until this time.
func (v *view) Left(until time.Time) float64 { return max(0, until.Sub(v.Now).Seconds()) }

// pagePatience is how long the page waits for the facts that the masters have about other processes. It is short, because the
// page is needed most when masters hang.
var pagePatience = time.Second

func (h *handler) page(w http.ResponseWriter, r *http.Request, parameters map[string]string, slot int) *Problem {
	lockers := h.lockers()
	v := &view{
		Now:    time.Now(),
		Status: statusOf(lockers),
		Prefix: parameters["prefix"],
		After:  parameters["after"],
		Key:    parameters["key"],

		ReadOnly: h.readOnly,
	}
	v.Verdict = judge(v.Status)
	if v.Key != "" {
		if slot != anySlot {
			v.Slot = &slot
		}
		v.Inspection, v.Problem = inspectKey(r.Context(), lockers, v.Key, slot)
	} else {
		keys := keysOf(lockers, v.Prefix)
		if v.Sort = parameters["sort"]; v.Sort != byKey && v.After == "" {
			v.Sort = byWaiting
		}
		v.Locks = locksOf(keys, v.Prefix, v.After, v.Sort, defaultLimit)
		v.Oldest, v.Longest = extremes(keys)
		ctx, cancel := context.WithTimeout(r.Context(), pagePatience)
		defer cancel()
		v.Processes = processesOf(ctx, lockers)
	}
	var page bytes.Buffer
	if err := pageTemplate.Execute(&page, v); err != nil {
		return problem("failed", http.StatusInternalServerError, "The page could not be made", err.Error())
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", policy)
	_, _ = page.WriteTo(w) // the client may have left
	return nil
}

var assets = map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}

// serveAsset serves a file of the page, and reports whether the path is the path of one.
func serveAsset(w http.ResponseWriter, _ *http.Request, name string) bool {
	contentType, ok := assets[name]
	if ok {
		text, _ := files.ReadFile(path.Join("page", name)) // they are embedded
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(text)
	}
	return ok
}
