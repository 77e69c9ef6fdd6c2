package doctor_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
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

// locker returns one with these settings, closed with the test.
func locker(t *testing.T, s doctor.Settings) *redlock.Locker {
	t.Helper()
	l, err := redlock.New(s.Masters, redlock.WithRestartGuard(s.Guard), redlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestCertificateEnds: a certificate that ends soon is found, whether it is the server's or its authority's, and no more after the renewal that
// is advised.
func TestCertificateEnds(t *testing.T) {
	t.Parallel()
	v := newVisit(t)
	life := v.authority.Life
	r := doctor.Examine(t.Context(), trusting(v.config, v.url))
	if until := time.Until(r.Masters[0].CertificateUntil); len(of(r, doctor.Certificate)) > 0 || r.Voting != 1 || until < life-24*time.Hour || until > life {
		t.Errorf("%+v", r)
	}
	v.authority.Life = 13 * 24 * time.Hour
	v.shows(v.authority, "127.0.0.1")
	end := time.Now().Add(v.authority.Life).UTC()
	advised(t, trusting(v.config, v.url), doctor.Certificate, end.Format("2006-01-02"), "CONFIG SET tls-cert-file FILE tls-key-file FILE")
	v.authority.Life = life
	v.shows(v.authority, "127.0.0.1")
	healed(t, trusting(v.config, v.url), doctor.Certificate)

	ends, next := redistest.NewAuthority(t, 13*24*time.Hour), v.authority
	v.authority = ends
	v.shows(ends, "127.0.0.1")
	own := v.config.Certificates // which the server trusts
	v.config = secure(t, ends)
	v.config.Certificates = own
	advised(t, trusting(v.config, v.url), doctor.Certificate, "first have all processes trust the new one, too")
	text, err := os.ReadFile(next.File)
	if err != nil {
		t.Fatal(err)
	}
	v.config.RootCAs.AppendCertsFromPEM(text)
	v.shows(next, "127.0.0.1")
	healed(t, trusting(v.config, v.url), doctor.Certificate)
}

// visit is a server that speaks TLS on one of its two ports, and how it is reached.
type visit struct {
	*redistest.Server
	t         *testing.T
	authority *redistest.Authority // that both sides trust
	secureURL string
	url       string
	config    *tls.Config
}

func newVisit(t *testing.T) *visit {
	t.Helper()
	authority := redistest.NewAuthority(t)
	servers, urls := authority.Start(1, "localhost")
	return &visit{servers[0], t, authority, urls[0], urls[0], secure(t, authority)}
}

// shows has the server show another certificate.
func (v *visit) shows(authority *redistest.Authority, names ...string) {
	v.t.Helper()
	certificate, key := authority.Issue(names...)
	if err := v.Client().Do(v.t.Context(), "CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key).Err(); err != nil {
		v.t.Skip("this server can't exchange both files at once:", err)
	}
}

// set sets a setting.
func (v *visit) set(name, value string) {
	v.t.Helper()
	if err := v.Client().ConfigSet(v.t.Context(), name, value).Err(); err != nil {
		v.t.Fatal(err)
	}
}

// TestTLS: of what fails with TLS, doctor and a Locker say the same. What is advised is done, and the master comes back.
func TestTLS(t *testing.T) {
	t.Parallel()
	const everyVersion = "TLSv1.2 TLSv1.3"
	again := func(v *visit) { v.shows(v.authority, "127.0.0.1") }
	otherAuthority := func(v *visit) { v.shows(redistest.NewAuthority(v.t), "127.0.0.1") }
	trustNobody := func(v *visit) { v.config.RootCAs = nil }
	otherName := func(v *visit) { v.config.ServerName = "redis.example.com" }
	noCertificate := func(v *visit) { v.config.Certificates = nil }
	expired := func(v *visit) {
		v.authority.Life = -time.Minute
		v.shows(v.authority, "127.0.0.1")
		v.authority.Life = time.Hour
	}
	for name, test := range map[string]struct {
		provoke func(*visit)
		text    string
		does    string // the words of the advice that are followed
		follow  func(*visit)
	}{
		"not used here":              {func(v *visit) { v.url = strings.Replace(v.secureURL, "rediss", "redis", 1) }, "and speaks TLS", "rite rediss://", func(v *visit) { v.url = v.secureURL }},
		"not used here, other port":  {func(v *visit) { v.url = strings.Replace(v.secureURL, "rediss", "redis", 1) }, "and speaks TLS", "the server's port without TLS", func(v *visit) { v.url = v.URL() }},
		"not used there":             {func(v *visit) { v.url = strings.Replace(v.URL(), "redis", "rediss", 1) }, "does not speak TLS", "rite redis://", func(v *visit) { v.url = v.URL() }},
		"not used there, other port": {func(v *visit) { v.url = strings.Replace(v.URL(), "redis", "rediss", 1) }, "does not speak TLS", "the server's TLS port", func(v *visit) { v.url = v.secureURL }},
		"authority":                  {trustNobody, "authority that is unknown", "rust its certificate", func(v *visit) { v.config = secure(v.t, v.authority) }},
		"authority of the server":    {otherAuthority, "authority that is unknown", "give the server one of an authority that is trusted", again},
		"name":                       {otherName, "redis.example.com", "set that name", func(v *visit) { v.config.ServerName = "127.0.0.1" }},
		"name, in masters":           {func(v *visit) { v.shows(v.authority, "localhost"); v.config.ServerName = "" }, "127.0.0.1", "rite a name of the certificate in masters", func(v *visit) { v.url = strings.Replace(v.url, "127.0.0.1", "localhost", 1) }},
		"name, issued":               {otherName, "redis.example.com", "issue a certificate for this name", func(v *visit) { v.shows(v.authority, "redis.example.com") }},
		"expired":                    {expired, "has expired", "enew it", again},
		"clock of this machine":      {func(v *visit) { v.config.Time = func() time.Time { return time.Now().AddDate(1, 0, 0) } }, "has expired", "correct the clock of this machine", func(v *visit) { v.config.Time = nil }},
		"another use":                {func(v *visit) { v.authority.Uses = v.authority.Uses[1:]; again(v); v.authority.Uses = nil }, "is not valid", "ssue another certificate for the server", again},
		"no certificate":             {noCertificate, "certificate", "how a certificate that the server's authority has signed", func(v *visit) { v.config = secure(v.t, v.authority) }},
		"none is wanted":             {noCertificate, "certificate", "set tls-auth-clients no", nil},
		"other authority":            {func(v *visit) { v.config.Certificates = secure(v.t, redistest.NewAuthority(v.t)).Certificates }, "certificate", "how a certificate that the server's authority has signed", func(v *visit) { v.config = secure(v.t, v.authority) }},
		"versions":                   {func(v *visit) { v.config.MinVersion, v.config.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, "TLS fails", "ompare the versions", func(v *visit) { v.config.MinVersion, v.config.MaxVersion = 0, 0 }},
		"versions of the server":     {func(v *visit) { v.config.MaxVersion = tls.VersionTLS12; v.set("tls-protocols", "TLSv1.3") }, "TLS fails", "tls-protocols", func(v *visit) { v.set("tls-protocols", everyVersion) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVisit(t)
			test.provoke(v)
			s := trusting(v.config, v.url)
			s.Patience = time.Second // Redis waits for more of a greeting that it can't read
			advice := advised(t, s, doctor.Reachability, test.text, test.does)
			l := locker(t, s)
			says := strings.TrimSuffix(advice[1:], ".") // but for the first letter
			if strings.Contains(says, "rediss:// instead") {
				says = "it speaks TLS on this port (write rediss://)" // a Locker doesn't try
			}
			eventually(t, "a Locker says: "+says, func() bool { return strings.Contains(fmt.Sprint(l.Status().Masters[0].Err), says) })
			if test.follow == nil {
				v.Follow(advice)
			} else {
				test.follow(v)
			}
			s = trusting(v.config, v.url)
			healed(t, s, doctor.Reachability)
			l = locker(t, s)
			eventually(t, "the master is back", func() bool { return l.Status().Available == 1 })
		})
	}
}
