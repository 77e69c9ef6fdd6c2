package doctor_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// secure returns settings of TLS that trust an authority, with a client certificate of it.
func secure(t *testing.T, a *redistest.Authority) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	own, err := tls.LoadX509KeyPair(a.Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{own}}
	c.RootCAs.AppendCertsFromPEM(text)
	return c
}

func TestCertificateEnds(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	authority.Life = 13 * 24 * time.Hour
	_, urls := authority.Start(1)
	r := doctor.Examine(t.Context(), trusting(secure(t, authority), urls...))
	found := of(r, doctor.Certificate)
	until := r.Masters[0].CertificateUntil
	if len(found) != 1 || found[0].Level != doctor.Warning || !strings.Contains(found[0].Text, until.UTC().Format("2006-01-02 at")) || time.Until(until) > authority.Life {
		t.Errorf("%+v", r)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	servers, urls := authority.Start(1)
	ours, others := secure(t, authority), secure(t, redistest.NewAuthority(t))
	for name, test := range map[string]struct {
		url    string
		change func(*tls.Config)
		texts  []string // none if all is well
	}{
		"fine":            {urls[0], nil, nil},
		"not used here":   {strings.Replace(urls[0], "rediss", "redis", 1), nil, []string{"speaks TLS", "rediss://"}},
		"not used there":  {strings.Replace(servers[0].URL(), "redis", "rediss", 1), nil, []string{"does not speak TLS", "tls-port"}},
		"authority":       {urls[0], func(c *tls.Config) { c.RootCAs = nil }, []string{"authority that is unknown", "trust_pool"}},
		"name":            {urls[0], func(c *tls.Config) { c.ServerName = "redis.example.com" }, []string{"redis.example.com", "server_name"}},
		"no certificate":  {urls[0], func(c *tls.Config) { c.Certificates = nil }, []string{"certificate", "client_auth"}},
		"other authority": {urls[0], func(c *tls.Config) { c.Certificates = others.Certificates }, []string{"certificate", "client_auth"}},
		"versions":        {urls[0], func(c *tls.Config) { c.MaxVersion = tls.VersionTLS11; c.MinVersion = tls.VersionTLS10 }, []string{"TLS fails", "tls-protocols"}},
		"too late":        {urls[0], func(c *tls.Config) { c.Time = func() time.Time { return time.Now().AddDate(1, 0, 0) } }, []string{"has expired", "Renew"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := ours.Clone()
			if test.change != nil {
				test.change(c)
			}
			s := trusting(c, test.url)
			if name == "not used there" {
				s.Patience = time.Second // Redis waits for more
			}
			r := doctor.Examine(t.Context(), s)
			if test.texts == nil {
				if len(of(r, doctor.Reachability)) > 0 || len(of(r, doctor.Certificate)) > 0 || time.Until(r.Masters[0].CertificateUntil) < 80*24*time.Hour || r.Voting != 1 {
					t.Errorf("%+v", r)
				}
				return
			}
			want{doctor.Error, doctor.Reachability, test.texts, false}.require(t, r)
		})
	}
}
