// Package traefik is a plugin for Traefik v3, which runs it in the interpreter Yaegi: one request per key at a time. It uses the
// keys, scripts, tokens and fences of package redlock, so that Traefik, Caddy and Go processes with the same masters exclude each
// other. docs/traefik.md describes how to set it up, and what the Caddy module has beyond it.
//
// The package imports only the standard library, and is written for Yaegi: no range over a number, no built-in min and max, no
// errors.As, no results of calls that become interfaces in a loop. Each goroutine recovers, because a panic would end Traefik. What
// runs for each request is in functions rather than methods, because a call of a method takes five times as long.
package traefik

//go:generate go test ../redlock -run ^TestScriptsOfTraefik$ -update
//go:generate go test ../middleware -run ^TestStableRunesOfTraefik$ -update

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sort"
	"strings"
	"time"
)

// Config has the settings of a middleware, as in Traefik's dynamic configuration. Durations are written like 2s.
type Config struct {
	Masters        []string `json:"masters,omitempty" yaml:"masters,omitempty" toml:"masters,omitempty"`
	Username       string   `json:"username,omitempty" yaml:"username,omitempty" toml:"username,omitempty"`
	Password       string   `json:"password,omitempty" yaml:"password,omitempty" toml:"password,omitempty"`
	PasswordFile   string   `json:"passwordFile,omitempty" yaml:"passwordFile,omitempty" toml:"passwordFile,omitempty"`
	Key            string   `json:"key,omitempty" yaml:"key,omitempty" toml:"key,omitempty"`
	Wait           string   `json:"wait,omitempty" yaml:"wait,omitempty" toml:"wait,omitempty"`
	TTL            string   `json:"ttl,omitempty" yaml:"ttl,omitempty" toml:"ttl,omitempty"`
	MaxHold        string   `json:"maxHold,omitempty" yaml:"maxHold,omitempty" toml:"maxHold,omitempty"`
	HeldStatus     int      `json:"heldStatus,omitempty" yaml:"heldStatus,omitempty" toml:"heldStatus,omitempty"`
	NoQuorumStatus int      `json:"noQuorumStatus,omitempty" yaml:"noQuorumStatus,omitempty" toml:"noQuorumStatus,omitempty"`
	OnMissingKey   string   `json:"onMissingKey,omitempty" yaml:"onMissingKey,omitempty" toml:"onMissingKey,omitempty"`
	OnNoQuorum     string   `json:"onNoQuorum,omitempty" yaml:"onNoQuorum,omitempty" toml:"onNoQuorum,omitempty"`
	FenceHeader    string   `json:"fenceHeader,omitempty" yaml:"fenceHeader,omitempty" toml:"fenceHeader,omitempty"`
	KeyPrefix      string   `json:"keyPrefix,omitempty" yaml:"keyPrefix,omitempty" toml:"keyPrefix,omitempty"`
	MaxTTL         string   `json:"maxTTL,omitempty" yaml:"maxTTL,omitempty" toml:"maxTTL,omitempty"`
	RestartGuard   string   `json:"restartGuard,omitempty" yaml:"restartGuard,omitempty" toml:"restartGuard,omitempty"`
	Timeout        string   `json:"timeout,omitempty" yaml:"timeout,omitempty" toml:"timeout,omitempty"`

	// Unknown has the settings with other names. New refuses them.
	Unknown map[string]interface{} `json:"-" yaml:"-" toml:"-" mapstructure:",remain"`
}

// timeout is how long a master may take to answer, by default. It is fixed here, whereas package redlock begins with 50 ms and
// adapts up to four times that.
const timeout = 200 * time.Millisecond

// CreateConfig returns the defaults.
func CreateConfig() *Config {
	return &Config{
		TTL:            defaultTTL.String(),
		MaxHold:        defaultMaxHold.String(),
		HeldStatus:     423,
		NoQuorumStatus: 409,
		FenceHeader:    "Fencing-Token",
		KeyPrefix:      defaultPrefix,
		MaxTTL:         defaultMaxTTL.String(),
		Timeout:        timeout.String(),
	}
}

// rule has the settings of a middleware that are not those of its locker.
type rule struct {
	template    *template
	wait        time.Duration
	ttl         time.Duration
	maxHold     time.Duration
	held        int
	noQuorum    int
	passMissing bool
	passNoVotes bool
	fenceHeader string
}

// read returns the settings of the rule and the options of its locker. Its errors begin with the name of the wrong setting.
func (c *Config) read() (*rule, *options, error) {
	r := &rule{held: c.HeldStatus, noQuorum: c.NoQuorumStatus, fenceHeader: c.FenceHeader}
	o := &options{prefix: c.KeyPrefix, maxSkew: defaultMaxSkew}
	if len(c.Unknown) > 0 {
		names := []string{}
		for name := range c.Unknown {
			names = append(names, name)
		}
		sort.Strings(names)
		return nil, o, errors.New("unknown settings: " + strings.Join(names, ", "))
	}
	var err error
	o.maxTTL, err = duration("maxTTL", c.MaxTTL, time.Second)
	if err == nil {
		r.ttl, err = duration("ttl", c.TTL, time.Second)
	}
	if err == nil && c.Wait != "" {
		r.wait, err = duration("wait", c.Wait, 0)
	}
	if err == nil {
		r.maxHold, err = duration("maxHold", c.MaxHold, time.Second)
	}
	if err == nil {
		o.timeout, err = duration("timeout", c.Timeout, time.Millisecond)
	}
	if err == nil {
		o.maxSkew = shorter(o.maxSkew, o.maxTTL/2)
		o.guard, err = guard(c.RestartGuard, longer(o.maxTTL, o.maxSkew+2*fenceSlack)+time.Second)
	}
	if err == nil {
		r.passMissing, err = passes("onMissingKey", c.OnMissingKey)
	}
	if err == nil {
		r.passNoVotes, err = passes("onNoQuorum", c.OnNoQuorum)
	}
	if err == nil {
		o.masters, err = c.addresses()
	}
	if err == nil {
		r.template, err = parseTemplate(c.Key)
	}
	if err != nil {
		return nil, o, err
	}
	switch {
	case r.ttl > o.maxTTL:
		err = errors.New("ttl " + r.ttl.String() + ": is above maxTTL, " + o.maxTTL.String())
	case r.ttl < 2*o.timeout:
		err = errors.New("ttl " + r.ttl.String() + ": must be at least twice the timeout of a master")
	case r.held < 400 || r.held > 599:
		err = fmt.Errorf("heldStatus %d: must be from 400 to 599", r.held)
	case r.noQuorum < 400 || r.noQuorum > 599:
		err = fmt.Errorf("noQuorumStatus %d: must be from 400 to 599", r.noQuorum)
	case !isHeaderName(r.fenceHeader):
		err = fmt.Errorf("fenceHeader %q: not the name of a header", r.fenceHeader)
	case isNoFenceHeader(r.fenceHeader):
		err = fmt.Errorf("fenceHeader %q: has a meaning of its own in HTTP; want another header, such as Fencing-Token", r.fenceHeader)
	case r.template.reads(r.fenceHeader):
		err = fmt.Errorf("fenceHeader %q: the key is made of this header, which is removed from each request; want another one, such as Fencing-Token", r.fenceHeader)
	case o.prefix == "" || strings.ContainsAny(o.prefix, "{}"):
		err = fmt.Errorf("keyPrefix %q: must not be empty or contain braces", o.prefix)
	}
	return r, o, err
}

func duration(name, text string, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s %q: must be a duration such as 500ms, 2s or 5m", name, text)
	}
	if d < least {
		return 0, fmt.Errorf("%s %s: must be at least %s", name, text, least.String())
	}
	return d, nil
}

// guard reads restartGuard.
func guard(text string, least time.Duration) (time.Duration, error) {
	if text == "" {
		return least, nil
	}
	if text == "off" || text == "0" || text == "false" { // without quotes, YAML reads off as false, which becomes 0
		return 0, nil
	}
	return duration("restartGuard", text, least)
}

func passes(name, text string) (bool, error) {
	if text != "" && text != "pass" && text != "refuse" {
		return false, fmt.Errorf("%s %q: must be refuse or pass", name, text)
	}
	return text == "pass", nil
}

func isHeaderName(name string) bool {
	for i := 0; i < len(name); i++ {
		if !isAlphanumeric(name[i]) && strings.IndexByte("!#$%&'*+-.^_`|~", name[i]) < 0 {
			return false
		}
	}
	return name != ""
}

// noFenceHeaders are taken out on the way to the upstream, break the request there, belong to the client, or are written by proxies.
var noFenceHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade", "Keep-Alive", "Expect",
	"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Content-Type", "Content-Encoding", "Cookie", "Idempotency-Key",
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via"}

func isNoFenceHeader(name string) bool {
	for _, other := range noFenceHeaders {
		if sameHeader(other, name) {
			return true
		}
	}
	return false
}

// addresses parses the URLs of the masters. Errors name a master by its position only, because its URL may contain a password.
func (c *Config) addresses() ([]*address, error) {
	password := c.Password
	if c.PasswordFile != "" {
		if password != "" {
			return nil, errors.New("password and passwordFile: give one of them")
		}
		text, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("passwordFile: %w", err)
		}
		password = strings.TrimRight(string(text), "\r\n")
		if password == "" {
			return nil, errors.New("passwordFile: the file is empty")
		}
	}
	if len(c.Masters) == 0 {
		return nil, errors.New("masters: none are given; give one, or three or five so that locks survive the loss of a server")
	}
	addresses := []*address{}
	for i, text := range c.Masters {
		a, err := parseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("masters: number %d of %d: %w", i+1, len(c.Masters), err)
		}
		if a.user == "" && a.password == "" {
			a.user = c.Username
			a.password = password
		}
		for k, other := range addresses {
			if other.name == a.name {
				return nil, fmt.Errorf("masters: numbers %d and %d are both %s: each must be an independent server", k+1, i+1, a.name)
			}
		}
		addresses = append(addresses, a)
	}
	return addresses, nil
}

const addressForms = "want redis://host:port, rediss:// for TLS, or unix:///path"

func parseAddress(text string) (*address, error) {
	u, err := url.Parse(text)
	if err == nil && !strings.Contains(text, "://") { // redis:6379 would be port 6379 of localhost
		return nil, errors.New("the URL has no scheme: write redis:// in front of it")
	}
	if err == nil && (strings.ContainsAny(u.Host, ",; ") || strings.Count(u.Host, ":") > 1 && !strings.HasPrefix(u.Host, "[")) {
		return nil, errors.New("not one host and its port: " + addressForms + "; IPv6 addresses have brackets")
	}
	if err != nil {
		return nil, errors.New("not a valid URL (not shown, because it may contain a password); " + addressForms)
	}
	a := &address{network: "tcp", db: strings.Trim(u.Path, "/")}
	scheme := strings.Replace(u.Scheme, "valkey", "redis", 1)
	if u.User != nil {
		a.user = u.User.Username()
		a.password, _ = u.User.Password()
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the URL has parameters, which are not supported")
	}
	switch scheme {
	case "redis", "rediss":
		host, port := u.Hostname(), u.Port()
		if host == "" {
			host = "localhost"
		}
		if port == "" {
			port = "6379"
		}
		a.addr = net.JoinHostPort(host, port)
		a.secure = scheme == "rediss"
	case "unix":
		if u.Host != "" || a.db == "" {
			return nil, errors.New("a unix:// URL has three slashes: write unix:///tmp/x")
		}
		a.network = "unix"
		a.addr = u.Path
		a.db = ""
	default:
		if strings.Contains(scheme, "sentinel") {
			return nil, errors.New("a Sentinel is not supported: a replica that it promotes may lack the newest locks; name three or five independent servers, each by its own address")
		}
		return nil, errors.New("not the URL of a Redis server; " + addressForms)
	}
	if strings.Trim(a.db, "0123456789") != "" {
		return nil, errors.New("the path of the URL must be the number of a database")
	}
	a.name = scheme + "://" + a.addr
	return a, nil
}

// text identifies a locker. It contains the passwords, and is never shown.
func (o *options) text() string {
	parts := []string{o.prefix, o.maxTTL.String(), o.guard.String(), o.timeout.String()}
	for _, a := range o.masters {
		parts = append(parts, a.name, a.db, a.user, a.password)
	}
	return strings.Join(parts, "\x00")
}
