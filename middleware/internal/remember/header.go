package remember

import (
	"net/http"
	"slices"
	"strings"
)

// hopByHop are the headers that concern one connection. A Connection header can name more of them.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// content are the headers that describe a body, and would be wrong for a different body.
var content = []string{"Content-Length", "Content-Type", "Content-Encoding", "Content-Range", "Content-Md5", "Digest", "Repr-Digest", "Content-Digest",
	"Etag", "Last-Modified", "Content-Disposition", "Content-Language", "Expires"}

// EndToEnd returns a copy of h without the headers that concern only the connection, and without Set-Cookie unless cookies is true.
func EndToEnd(h http.Header, cookies bool) http.Header {
	var named []string
	for name, lines := range h {
		if http.CanonicalHeaderKey(name) != "Connection" {
			continue
		}
		for _, line := range lines {
			for option := range strings.SplitSeq(line, ",") {
				named = append(named, http.CanonicalHeaderKey(strings.Trim(option, " \t")))
			}
		}
	}
	kept := h.Clone()
	for sent := range kept {
		name := http.CanonicalHeaderKey(sent)
		if slices.Contains(hopByHop, name) || slices.Contains(named, name) || !cookies && isCookie(name) {
			delete(kept, sent)
		}
	}
	return kept
}

func isCookie(name string) bool {
	return strings.EqualFold(name, "Set-Cookie") || strings.EqualFold(name, "Set-Cookie2")
}

func dropContent(h http.Header) {
	for _, name := range content {
		h.Del(name)
	}
}

// streams reports whether bodies of this type are sent in parts, and a client waits for each part.
func streams(contentType string) bool {
	mediaType, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	mediaType = strings.TrimSpace(mediaType)
	return mediaType == "text/event-stream" || strings.HasPrefix(mediaType, "application/grpc")
}

// hasTrailers reports whether a handler has announced trailers, or set trailers without announcing them.
func hasTrailers(h http.Header) bool {
	for name, values := range h {
		if name == "Trailer" && len(values) > 0 || strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}
