// Package lockname says which keys share a lock, and how logs name it.
package lockname

import (
	"crypto/sha256"
	"encoding/hex"
)

// Of returns the name of a key's lock: the key with the letters A to Z in lower case. Two keys with the same name share a lock. Rules lock values in
// lower case, so a job or a program that locks the same value as it is written excludes them. Other letters stay as they are: a table of them would
// change with each version of Unicode, and processes of two versions would not exclude each other.
func Of(key string) string {
	for i := range len(key) {
		if isUpper(key[i]) {
			name := []byte(key)
			for ; i < len(name); i++ {
				if isUpper(name[i]) {
					name[i] += 'a' - 'A'
				}
			}
			return string(name)
		}
	}
	return key
}

// Hash returns the beginning of the SHA-256 of a key's lock, in hexadecimal digits. Logs have this hash in place of the key, which may be personal
// data, so that all log lines about one lock can be found. Anybody who can guess a key can check the guess.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(Of(key)))
	return hex.EncodeToString(sum[:6])
}

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
