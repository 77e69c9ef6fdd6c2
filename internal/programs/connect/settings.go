package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Settings are the masters of a program, and the options for locks on them, as its flags and its environment give them. The zero value has no
// masters, and the defaults of package redlock.
type Settings struct {
	Given

	Masters      []string // URLs
	MastersFile  string   // more of them, separated as in Masters; # begins a comment
	Username     string
	PasswordFile string
	CA           string // files, in PEM
	Certificate  string
	Key          string
	ServerName   string

	// AllowMemory has masters memory:// accepted, whose locks are those of this process alone.
	AllowMemory bool

	flags  *pflag.FlagSet // of AddFlags
	access atomic.Pointer[inside.Access]
}

// passwordVariable is the variable with the password, if no file has it. No flag has the password, because other users can see flags.
const passwordVariable = "REDLOCK_PASSWORD"

// Open returns a locker on the masters. opts override the settings.
func (s *Settings) Open(opts ...redlock.Option) (*redlock.Locker, error) {
	masters, own, err := s.Resolve()
	if err != nil {
		return nil, err
	}
	return redlock.New(masters, append(own.List(), opts...)...)
}

// Resolve returns the masters, and the options of a locker on them.
func (s *Settings) Resolve() ([]redlock.Master, Options, error) {
	urls, err := s.urls()
	if err == nil {
		err = s.Renew()
	}
	if err != nil {
		return nil, Options{}, err
	}
	if s.access.Load().TLS != nil && !slices.ContainsFunc(urls, UsesTLS) {
		return nil, Options{}, ErrNoTLS
	}
	o, err := s.Given.Options(s.name)
	if err != nil {
		return nil, o, err
	}
	masters, err := inside.Dial(func() inside.Access { return *s.access.Load() }, urls...)
	if err != nil {
		return nil, o, fmt.Errorf("masters: %w", err)
	}
	return masters.([]redlock.Master), o, nil
}

// Renew reads the files with the password and the certificates again. New connections of a locker of Open use them. With an error, the former content
// stays in use.
func (s *Settings) Renew() error {
	password, err := s.password()
	if err != nil {
		return err
	}
	secure, err := s.tls()
	if err != nil {
		return err
	}
	s.access.Store(&inside.Access{Username: s.Username, Password: password, TLS: secure})
	return nil
}

// urls reads the file and the environment. Its errors show no URLs, because these may have passwords.
func (s *Settings) urls() ([]string, error) {
	given := s.Masters
	if s.MastersFile != "" {
		text, err := os.ReadFile(s.MastersFile)
		if err != nil {
			return nil, fmt.Errorf("--masters-file: %w", err)
		}
		given = slices.Clone(given)
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "#")
			given = append(given, Split(line)...)
		}
	}
	if len(given) == 0 {
		return nil, errors.New("no masters: want --masters, REDLOCK_MASTERS or --masters-file with the URL of a Redis server, or of three or five independent ones")
	}
	for i, text := range given {
		if strings.HasPrefix(text, "memory://") && !s.AllowMemory {
			return nil, fmt.Errorf("masters: number %d is memory://, whose locks no other process sees: want the URL of a Redis server", i+1)
		}
	}
	return given, nil
}

func (s *Settings) password() (string, error) {
	text, from := os.Getenv(passwordVariable), passwordVariable
	if s.PasswordFile == "" && text == "" {
		return "", nil
	}
	if s.PasswordFile != "" {
		content, err := os.ReadFile(s.PasswordFile)
		if err != nil {
			return "", fmt.Errorf("--password-file: %w", err)
		}
		text, from = string(content), "--password-file "+s.PasswordFile
	}
	password := strings.TrimRight(text, "\r\n") // secrets are often made by echo
	if password == "" || strings.ContainsAny(password, "\r\n") {
		return "", fmt.Errorf("%s: want one line, which is the password", from)
	}
	return password, nil
}

// tls returns the settings of TLS, or nil if there are none.
func (s *Settings) tls() (*tls.Config, error) {
	if s.CA == "" && s.Certificate == "" && s.Key == "" && s.ServerName == "" {
		return nil, nil
	}
	config := &tls.Config{ServerName: s.ServerName}
	if s.CA != "" {
		text, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--tls-ca: %s has no certificate in PEM", s.CA)
		}
	}
	if (s.Certificate == "") != (s.Key == "") {
		return nil, errors.New("a client certificate needs both --tls-cert and --tls-key")
	}
	if s.Certificate != "" {
		own, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert %s and --tls-key %s: %w", s.Certificate, s.Key, err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// name returns what the user has written to set an option: a flag, or a variable of the environment.
func (s *Settings) name(option string) string {
	return Name(s.flags, strings.ReplaceAll(option, " ", "-"))
}
