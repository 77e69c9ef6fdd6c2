package redlock

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const maxInstance = 64 // bytes of an instance name

func unprintable(c rune) bool { return c <= ' ' || c > '~' }

func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	host = strings.Map(func(c rune) rune {
		if unprintable(c) {
			return '-'
		}
		return c
	}, host)
	pid := fmt.Sprint("/", os.Getpid())
	return host[:min(len(host), maxInstance-len(pid))] + pid
}

// Instance returns the name of this process: see WithInstance.
func (l *Locker) Instance() string { return l.instance }

// random returns the part of a token, or of a name, that is made by chance: the ID of this process, so that others can
// find out whose it is, and 90 random bits.
func (l *Locker) random() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" // that of rand.Text
	var text [protocol.RandomLen]byte
	_, _ = rand.Read(text[copy(text[:], l.id):]) // it never fails
	for i := protocol.IDLen; i < len(text); i++ {
		text[i] = alphabet[text[i]%byte(len(alphabet))]
	}
	return string(text[:])
}

// idOf returns the ID of the process in its token or the end of its name. Of one that isn't ours it returns a part, too.
func idOf(random string) string { return random[:min(protocol.IDLen, len(random)/2)] }
