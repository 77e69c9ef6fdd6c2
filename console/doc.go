// Package console shows what the lockers of a process know and hold, and what the masters know of a key: as JSON for
// programs, and as a page for people. New returns it as an http.Handler:
//
//	GET /                      the page
//	GET /masters               Status: which masters grant locks, and whether there is a quorum
//	GET /processes             Processes: the processes that share masters with this one
//	GET /locks                 Locks: the keys that this process holds or waits for
//	GET /locks/{key}           Inspection: a key as each master sees it
//	DELETE /locks/{key}?fence=N    ends the lock with that fencing token, whoever holds it
//	DELETE /results/{key}      makes the masters forget the result of the key
//
// In a path, a key is escaped as url.PathEscape does. The keys "." and "..", which clients and servers remove from paths, and
// any other key, can also be given as a parameter: /locks?key=…
//
// Errors are problems of RFC 9457, application/problem+json.
package console
