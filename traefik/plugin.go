package traefik

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// handler serializes the requests of one router.
type handler struct {
	next    http.Handler
	rule    *rule
	options *options
	pool    string // which locker it shares
	usual   *usual
}

// New returns the middleware in front of next. Traefik calls it for each router and at each change of the dynamic configuration; the
// context ends at the next change. Errors name the setting, and never contain a password.
func New(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	if config == nil {
		return nil, fmt.Errorf("redlock %s: no configuration", name)
	}
	r, o, err := config.read()
	if err != nil {
		return nil, fmt.Errorf("redlock %s: %w", name, err)
	}
	h := &handler{next: next, rule: r, options: o, pool: o.text(), usual: &usual{}}
	borrowUntil(ctx, h.pool, o)
	return h, nil
}

// ServeHTTP takes the lock of a request, serves the request, and releases the lock when next has returned or panicked, even if the
// client has left.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	strip(r.Header, h.rule.fenceHeader)
	strip(r.Trailer, h.rule.fenceHeader)
	keepAnnounced(r)
	stripConnection(r.Header)
	if upgrades(r) {
		refuse(w, http.StatusForbidden, "upgrade", 0, "")
		return
	}
	key, part, err := h.rule.template.key(r)
	switch {
	case err == errMissing && h.rule.passMissing:
		h.next.ServeHTTP(w, r)
		return
	case err == errMissing:
		refuse(w, http.StatusBadRequest, "missing_key", 0, "key part {"+part+"}: "+err.Error())
		return
	case err != nil:
		refuse(w, http.StatusBadRequest, "bad_key", 0, "key part {"+part+"}: "+err.Error())
		return
	}
	if len(key) > maxKey {
		sum := sha256.Sum256([]byte(key))
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	l := borrow(h.pool, h.options)
	defer giveUp(h.pool)
	k, f := l.take(r.Context(), key, h.rule)
	if f == nil {
		h.serve(k, w, r)
		return
	}
	switch {
	case r.Context().Err() != nil:
		refuse(w, statusClientClosed, "canceled", 0, "")
	case f.outcome == "held":
		refuse(w, h.rule.held, f.outcome, h.usual.retryAfter(f.retry), "")
	case h.rule.passNoVotes:
		log.Print("redlock: request is served without its lock: too few masters answer")
		h.next.ServeHTTP(w, r)
	default:
		refuse(w, h.rule.noQuorum, f.outcome, spread(f.retry), "")
	}
}

const (
	maxKey             = 200 // bytes; a longer key is replaced by its hash
	statusClientClosed = 499 // nginx's status for a request whose client has left
)

// serve serves a request that holds its lock. Its context ends when the lease is lost, but not when the client leaves: the upstream
// may still be working, and no second request must run beside it.
func (h *handler) serve(k *lock, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	began := time.Now()
	defer func() {
		cancel(nil)
		h.usual.add(time.Since(began))
		lost := k.err()
		freed := k.unlock()
		if lost == nil && !freed {
			log.Print("redlock: release is not confirmed; it is repeated until the lease ends")
		}
	}()
	k.onLoss(cancel)
	if k.err() != nil { // certainly nothing has been written yet
		refuse(w, http.StatusInternalServerError, "lost", 0, "")
		return
	}
	served := r.WithContext(ctx)
	served.Header = r.Header.Clone() // r is without the token, for those that use it after the lock is released
	served.Header.Set(h.rule.fenceHeader, strconv.FormatInt(k.a.fence, 10))
	h.next.ServeHTTP(w, served)
}

// strip removes a header in every spelling that some server reads as that name.
func strip(header http.Header, name string) {
	for sent := range header {
		if len(sent) == len(name) && sameHeader(sent, name) {
			delete(header, sent)
		}
	}
}

// connectionOptions are the options of the header Connection that are about the connection itself. All others name headers that a
// proxy removes before it passes the request on: by these a client could remove what its key was made of, or our fencing token.
var connectionOptions = map[string]bool{"close": true, "keep-alive": true, "upgrade": true, "te": true, "http2-settings": true, "proxy-connection": true}

func stripConnection(header http.Header) {
	lines := header["Connection"]
	for i, line := range lines {
		kept := []string{}
		for _, option := range strings.Split(line, ",") {
			if connectionOptions[strings.ToLower(strings.Trim(option, " \t"))] {
				kept = append(kept, option)
			}
		}
		lines[i] = strings.Join(kept, ",")
	}
}

// upgrades reports whether a request asks for another protocol, which would hold the lock for as long as it lasts. The offer of
// h2c, which some clients send with every request, is removed instead.
func upgrades(r *http.Request) bool {
	asked := r.Header["Upgrade"]
	if len(asked) == 1 && strings.EqualFold(asked[0], "h2c") {
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
		return false
	}
	return r.Method == http.MethodConnect || len(asked) > 0
}

// usual has the times for which the last requests held their locks.
type usual struct {
	mu    sync.Mutex
	holds [16]int64
	n     int
}

func (u *usual) add(hold time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.holds[u.n%len(u.holds)] = int64(hold)
	u.n++
}

// retryAfter returns after what time a client should retry, if the lease of the lock that it has met lasts for another left: the
// median of the last holds. As long as there are fewer than 16, the others count as 0.
func (u *usual) retryAfter(left time.Duration) time.Duration {
	u.mu.Lock()
	holds := append([]int64{}, u.holds[:]...)
	u.mu.Unlock()
	sortNumbers(holds)
	median := time.Duration(holds[len(holds)/2])
	if 0 < left && left < median {
		median = left
	}
	return spread(median)
}
