package e2e

import (
	"net/http"
	"slices"
	"strings"
)

const (
	contentType = "Content-Type"
	jsonType    = "application/json"
	onBody      = "redlock {body.id}"
	smallBody   = `{"id":"a"}`
)

var largeBody = `{"id":"a","x":"` + strings.Repeat("y", 50_000) + `"}`

// posts returns requests with the same bodies, with their length and without.
func posts(path string) []*http.Request {
	return []*http.Request{
		ask("POST", path, smallBody, contentType, jsonType),
		chunked("POST", path, smallBody, contentType, jsonType),
		ask("POST", path, largeBody, contentType, jsonType),
		chunked("POST", path, largeBody, contentType, jsonType),
	}
}

// Handlers and matchers that read the body.
func bodyCases(h *hosts) (cases []hostCase) {
	proxy := "reverse_proxy " + h.echo
	for name, site := range map[string]string{
		"in vars":              "route {\nLOCK\nvars b {http.request.body}\nheader X-B {vars.b}\n" + proxy + "\n}",
		"in a header upstream": "LOCK\n" + proxy + " {\nheader_up X-Seen {http.request.body}\n}",
		"in a matcher":         "LOCK\n@a expression `{http.request.body}.contains('refund')`\nreverse_proxy @a " + h.fallback + "\n" + proxy,
		"in a handled matcher": "LOCK\n@a expression `{http.request.body}.contains('id')`\nhandle @a {\n" + proxy + "\n}",
		"behind the proxy":     "LOCK\nheader >X-B {http.request.body}\n" + proxy,
		"in a map":             "map {http.request.body} {b} {\n~.*id.* yes\ndefault x\n}\nLOCK\n" + proxy + " {\nheader_up X-Seen {b}\n}",
		"in base64":            "route {\nLOCK\nvars b {http.request.body_base64}\n" + proxy + "\n}",
		"set before":           "route {\nrequest_body {\nset `{\"id\":\"b\"}`\n}\nLOCK\n" + proxy + "\n}",
		"in templates":         "root * " + h.dir + "\nroute {\nLOCK\nrewrite * /b.html\nmethod GET\ntemplates\nfile_server\n}",
		"in an invoked route":  "NAMED\nroute {\nvars b {http.request.body}\nLOCK\nheader X-B {vars.b}\n" + proxy + "\n}",
		"in log_append":        "log\nLOCK\nlog_append b {http.request.body}\n" + proxy,
		"by auth before":       "forward_auth " + h.auth + " {\nuri /verify\nmethod POST\nheader_up X-Seen {http.request.body}\n}\nLOCK\n" + proxy,
		"set":                  "route {\nLOCK\nrequest_body {\nset newbody\n}\n" + proxy + "\n}",
		"bounded":              "request_body {\nmax_size 1000\n}\nLOCK\n" + proxy,
		"bounded behind":       "route {\nLOCK\nrequest_body {\nmax_size 1000\n}\n" + proxy + "\n}",
		"sent again":           "LOCK\nreverse_proxy " + h.dead + " " + h.echo + " {\nlb_policy first\nlb_try_duration 20s\nlb_try_interval 1ms\nfail_duration 50ms\n}",
		"buffered":             "LOCK\n" + proxy + " {\nrequest_buffers 4KB\nresponse_buffers 4KB\n}",
		"not read":             "LOCK\nrespond ok",
	} {
		keyed := posts("/o/1")
		if strings.HasPrefix(name, "set") { // the trailers of a replaced body are only known if it was read
			keyed = slices.DeleteFunc(keyed, func(r *http.Request) bool { return r.Trailer != nil })
		}
		cases = append(cases, hostCase{name: "body " + name, site: site, requests: posts("/o/1")},
			hostCase{name: "body " + name + ", key of the body", site: site, lock: onBody, requests: keyed})
	}
	return cases
}

// Handlers of errors and of responses may read the body too.
func errorCases(h *hosts) (cases []hostCase) {
	for name, site := range map[string]string{
		"fallback for a dead upstream":  "LOCK\nreverse_proxy " + h.dead + "\nhandle_errors {\nLOCK\nreverse_proxy " + h.fallback + "\n}",
		"fallback for an error":         "LOCK\nhandle {\nerror 503\n}\nhandle_errors {\nrewrite * /error?\nreverse_proxy " + h.fallback + "\n}",
		"body in the response":          "LOCK\nhandle {\nerror 503\n}\nhandle_errors {\nrespond `{http.request.body}` 503\n}",
		"fallback for a response":       "LOCK\nreverse_proxy " + h.failing + " {\n@e status 500\nhandle_response @e {\nreverse_proxy " + h.fallback + "\n}\n}",
		"fallback for a buffered one":   "LOCK\nreverse_proxy " + h.failing + " {\nrequest_buffers 1MB\n@e status 500\nhandle_response @e {\nreverse_proxy " + h.fallback + "\n}\n}",
		"copied header":                 "LOCK\nreverse_proxy " + h.failing + " {\n@e status 500\nhandle_response @e {\ncopy_response_headers {\ninclude Content-Type\n}\nrespond `{http.request.body}` 502\n}\n}",
		"intercept, replaced status":    "LOCK\nintercept {\n@e status 500\nreplace_status @e 418\n}\nreverse_proxy " + h.failing,
		"error of an error":             "LOCK\nhandle {\nerror 503\n}\nhandle_errors {\nerror 418\n}",
		"lock in the handler of errors": "handle {\nerror 503\n}\nhandle_errors {\nLOCK\nreverse_proxy " + h.fallback + "\n}",
		"copied response":               "LOCK\nreverse_proxy " + h.failing + " {\n@e status 500\nhandle_response @e {\nheader X-A yes\ncopy_response 502\n}\n}",
		"intercept":                     "LOCK\nintercept {\n@e status 500\nhandle_response @e {\nrespond nice 418\n}\n}\nreverse_proxy " + h.failing,
		"intercept around":              "route {\nintercept {\n@e status 500\nhandle_response @e {\nrespond nice 418\n}\n}\nLOCK\nreverse_proxy " + h.failing + "\n}",
		"intercept around, with a body": "route {\nintercept {\n@e status 500\nhandle_response @e {\nrewrite * /error?\nreverse_proxy " + h.fallback + "\n}\n}\nLOCK\nrespond no 500\n}",
		"error":                         "LOCK\nhandle {\nerror no 418\n}",
	} {
		cases = append(cases, hostCase{name: name, site: site, requests: append(posts("/o/1"), ask("GET", "/o/1", ""))},
			hostCase{name: name + ", key of the body", site: site, lock: onBody, requests: posts("/o/1")})
	}
	return cases
}

// Handlers that change the request, and placeholders that show it.
func requestCases(h *hosts) (cases []hostCase) {
	proxy := "reverse_proxy " + h.echo
	for name, site := range map[string]string{
		"method":        "route {\nLOCK\nmethod PUT\nheader X-A {method}\n" + proxy + "\n}",
		"host":          "route {\nLOCK\nrequest_header Host new.example\nheader X-A {host}\n" + proxy + "\n}",
		"header":        "route {\nLOCK\nrequest_header X-Q new\nheader X-A {header.X-Q}\n" + proxy + "\n}",
		"rewrite":       "LOCK\nhandle_path /o/* {\nrewrite * /new{uri}\nheader X-A {uri}\nheader X-B {http.request.orig_uri}\nheader X-C {path}\n" + proxy + "\n}",
		"prefix":        "route {\nLOCK\nuri strip_prefix /o\nheader X-A {uri}\n" + proxy + "\n}",
		"vars":          "LOCK\nvars a {header.X-Q}\nheader X-A {vars.a}\n" + proxy,
		"after the end": "header >X-A {method}-{header.X-Q}\nroute {\nLOCK\nmethod PUT\nrequest_header X-Q new\nrespond ok\n}",
		"try_files":     "root * " + h.dir + "\nroute {\nLOCK\ntry_files {path} /t.html\nheader X-A {http.matchers.file.relative}\n" + proxy + "\n}",
		"map":           "map {method}{header.X-Q} {q} {\nPOST7 a\ndefault b\n}\nLOCK\nmethod PUT\n" + proxy + " {\nheader_up X-Seen {q}\n}",
		"query":         "route {\nLOCK\nuri query +c d\nheader X-A {query}\nheader X-B {query.c}\n" + proxy + "\n}",
		"before":        "route {\nmethod PUT\nrequest_header X-Q new\nuri query +c d\nuri replace /1 /2\nLOCK\nheader X-A {uri}\n" + proxy + "\n}",
		"two keys":      "route {\nLOCK\nNESTED\n" + proxy + "\n}",
		"invoke":        "NAMED\nroute {\nLOCK\n" + proxy + "\n}",
		"tracing":       "tracing {\nspan x\n}\nLOCK\n" + proxy,
		"twice":         "route {\nLOCK\nhandle {\nLOCK\n" + proxy + "\n}\n}",
		"auth around":   "forward_auth " + h.auth + " {\nuri /verify\ncopy_headers Remote-User\n}\nLOCK\n" + proxy,
		"auth inside":   "route {\nLOCK\nforward_auth " + h.auth + " {\nuri /verify\ncopy_headers Remote-User\n}\n" + proxy + "\n}",
		"nothing else":  "LOCK",
	} {
		cases = append(cases, hostCase{name: "request: " + name, site: site, requests: []*http.Request{
			ask("POST", "/o/1?a=b", smallBody, "X-Q", "7"), ask("GET", "/o/1", "", "X-Token", "1"), chunked("POST", "/o/1", smallBody, "X-Token", "1"),
			ask("HEAD", "/o/1", ""), ask("OPTIONS", "/o/1", ""), ask("DELETE", "/o/1", smallBody), ask("POST", "/o/1", "", "Te", "trailers"),
		}})
	}
	for name, site := range map[string]string{"read": "LOCK\n" + proxy, "read by a matcher": "LOCK\n@a expression `{http.request.body}.contains('id')`\nrespond @a ok"} {
		cases = append(cases, hostCase{name: "request: expect, " + name, site: site, requests: []*http.Request{
			ask("POST", "/o/1", smallBody, "Expect", "100-continue"), ask("POST", "/o/1", largeBody, "Expect", "100-continue"),
		}})
	}
	return cases
}

// Handlers that make or change the response.
func responseCases(h *hosts) (cases []hostCase) {
	large := "reverse_proxy " + h.large
	files := "root * " + h.dir + "\nLOCK\n"
	for name, site := range map[string]string{
		"encode":         "encode zstd gzip\nLOCK\n" + large,
		"encode around":  "route {\nencode gzip\nLOCK\n" + large + "\n}",
		"early hints":    "LOCK\nreverse_proxy " + h.hints,
		"file_server":    files + "file_server",
		"templates":      files + "templates\nfile_server",
		"respond":        "LOCK\nmetrics /m/metrics\nrespond ok 201",
		"redir":          "LOCK\nhandle {\nredir https://x.example{uri}\n}",
		"no content":     "LOCK\nrespond 204",
		"not modified":   "LOCK\nheader Etag `\"a\"`\nrespond 304",
		"header at once": "LOCK\nheader X-A yes\nheader -Server\n" + large,
	} {
		c := hostCase{name: "response: " + name, site: site, lock: "redlock {path.0}"}
		for _, path := range []string{"/f.txt", "/t.html"} {
			c.requests = append(c.requests,
				ask("GET", path, "", "X-Q", "7"), ask("HEAD", path, ""), ask("GET", path, "", "Accept-Encoding", "gzip"), ask("HEAD", path, "", "Accept-Encoding", "zstd"),
				ask("GET", path, "", "Range", "bytes=5-9"), ask("GET", path, "", "Range", "bytes=0-1,5-6"), ask("POST", path, smallBody))
		}
		cases = append(cases, c)
	}
	return cases
}
