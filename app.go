package caddyredlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/caddycli"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/metrics"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func init() {
	caddy.RegisterModule(App{})
	caddycli.Register(caddycli.Module{Masters: doctorSettings, Secrets: withSecrets, Coverage: writeCoverage})
}

// App has the masters on which all redlock handlers of a configuration take their locks.
type App struct {
	// The URLs of the masters: redis://host:port, rediss://host:port for TLS (valkey:// and valkeys:// mean
	// the same), redis-cluster://host:port for a whole Redis Cluster as one master, unix:///path, or memory:// for this process's own memory. They must be independent servers,
	// not replicas of each other; use three or five, to survive the loss of one or two. Global placeholders
	// such as {env.REDIS_URL} are replaced. Default: one memory:// master, which only works for a single process.
	Masters []string `json:"masters,omitempty"`
	// The user name for masters whose URLs have none. Global placeholders are replaced.
	// Default: none.
	Username string `json:"username,omitempty"`
	// The password for masters whose URLs have none, best as a placeholder: {file./run/secrets/redis} or {env.REDIS_PASSWORD}.
	// Default: none.
	Password string `json:"password,omitempty"`
	// The certificates for masters with rediss:// URLs. Default: those of the system, and none of our own.
	TLS *TLS `json:"tls,omitempty"`
	// How long a master may take to answer. Default: 50ms.
	Timeout time.Duration `json:"timeout,omitempty"`
	// The prefix of all keys on the masters: <prefix>:{<key>}. It must be the same in all
	// processes that share locks. Default: redlock.
	KeyPrefix string `json:"key_prefix,omitempty"`
	// The longest ttl that a rule may ask for. It must be the same in all processes that share the
	// masters. Default: 10s.
	MaxTTL time.Duration `json:"max_ttl,omitempty"`
	// How long a server that has just started has no vote, because it may have forgotten locks
	// that it granted before; at least max_ttl + 1 s. Or "off", for servers that forget nothing
	// (appendfsync always with no-appendfsync-on-rewrite no), and for development.
	// Default: max_ttl + 1 s.
	RestartGuard string `json:"restart_guard,omitempty"`

	// How much the masters' clocks may differ: a master whose clock is more than half of this away from the
	// middle of all clocks has no vote until its clock is set right. Or "off": then the clocks must differ by
	// less than restart_guard. Default: 2s, or half of max_ttl if that is less.
	MaxSkew string `json:"max_skew,omitempty"`

	// The name by which others see this process where it holds or waits for a key: 1 to 64 printable ASCII characters without spaces.
	// Global placeholders are replaced. Default: the name of the host and the process ID, as in web1/4711.
	Instance string `json:"instance,omitempty"`

	// How many bytes of bodies, and of responses that wait, all rules together may keep in memory. If the budget is used up, a
	// request waits for room. Default: 67108864 (64 MiB).
	BodyBudget int64 `json:"body_budget,omitempty"`

	// Files with the keys that encrypt the responses that rules remember on the masters, each with 32 bytes in base64. The first
	// encrypts, all decrypt. All processes must have them: a response that can't be read is refused with 500. Default: none, the masters
	// can read the responses.
	RememberKeys []string `json:"remember_keys,omitempty"`

	// Where the Caddyfile has the settings that can only be checked when the configuration is loaded, for error messages.
	Source source `json:"source,omitempty"`

	ctx        caddy.Context
	bodies     *middleware.Budget
	sealer     *middleware.Sealer // nil if responses are not encrypted
	hideBudget func()             // removes the budget from the metrics; nil if the metrics don't show it
	settings   settings
	share      *share

	ourHeaders []string                   // the headers that rules set, and that no client may set
	strips     map[*caddyhttp.Server]bool // whether our headers are removed from each request of a server
	checked    map[*caddyhttp.Server]bool // the servers whose routes checkServer has accepted
	covered    map[*caddyhttp.Server]bool // the servers whose routes checkCoverage has accepted
}

// UnmarshalJSON reads the settings as a Handler does.
func (a *App) UnmarshalJSON(text []byte) error {
	type plain App // without this method
	return rule.Unmarshal(text, (*plain)(a))
}

// MarshalJSON writes what UnmarshalJSON reads.
func (a App) MarshalJSON() ([]byte, error) {
	type plain App
	return rule.Marshal(plain(a))
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "redlock",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision replaces placeholders and checks the configuration. It doesn't connect to the masters, since the configuration may only be
// validated, or another part of it refused.
func (a *App) Provision(ctx caddy.Context) error {
	a.share = new(share)
	a.strips, a.checked, a.covered = make(map[*caddyhttp.Server]bool), make(map[*caddyhttp.Server]bool), make(map[*caddyhttp.Server]bool)
	a.ctx = ctx
	if err := a.provision(ctx); err != nil {
		return a.Source.at(err)
	}
	return nil
}

func (a *App) provision(ctx caddy.Context) error {
	var err error
	if a.settings, err = a.resolved(ctx); err != nil {
		return err
	}
	if len(a.Masters) == 0 {
		ctx.Logger().Warn("no masters are configured: locks are kept in this process's memory, and do not exclude requests in other processes; list your Redis servers in the global option redlock { masters … }")
	}
	a.bodies = middleware.NewBudget(cmp.Or(a.BodyBudget, middleware.DefaultBodyBudget))
	if a.sealer, err = loadSealer(a.RememberKeys); err != nil {
		return err
	}
	if err = cmp.Or(a.settings.valid(), a.settings.refusal()); err != nil {
		return err
	}
	ctx.Logger().Debug("masters", zap.Int("count", len(a.settings.URLs)))
	return a.showMetrics(ctx)
}

func (a *App) inMemory() bool {
	return len(a.settings.URLs) == 1 && strings.HasPrefix(a.settings.URLs[0], "memory:")
}

// Start joins the pool of lockers, unless a request has done so already: the app http may have started before this app. Start does not wait for the
// masters.
func (a *App) Start() error {
	a.warnOfForged(a.ctx)
	warnOfOtherWays(a.ctx)
	return a.share.take(&a.settings)
}

// join returns the locker for a request, which is one of its users until leave is called. If the former configuration has other masters or
// another prefix, join first waits until the last requests of that configuration have ended.
func (a *App) join(ctx context.Context) (*redlock.Locker, error) {
	if err := a.share.take(&a.settings); err != nil {
		return nil, err
	}
	locker, err := a.settings.join()
	if err != nil {
		return nil, err
	}
	before := a.share.before
	if locker != a.share.locker { // the locker was made after Cleanup, for the last requests of a server
		before = a.settings.strangers()
	}
	if err := awaitEnd(ctx, before); err != nil {
		return nil, errors.Join(err, a.settings.leave())
	}
	return locker, nil
}

// Stop does nothing: requests may still hold locks. Cleanup leaves the pool.
func (a *App) Stop() error { return nil }

// Cleanup leaves the pool. The locker is closed when its last request is done, and hold_after_abort holds no more keys. If the grace period of an
// exit is over before that, the process ends without releasing its locks. Then the leases keep other processes out, because an upstream may not have
// noticed yet that nobody reads its response.
func (a *App) Cleanup() error {
	if a.hideBudget != nil {
		a.hideBudget()
	}
	return a.share.giveBack(&a.settings)
}

// Interface guards
var (
	_ caddy.App             = (*App)(nil)
	_ caddy.Provisioner     = (*App)(nil)
	_ caddy.CleanerUpper    = (*App)(nil)
	_ caddyfile.Unmarshaler = (*App)(nil)
)

// settings are the settings of an App with all placeholders replaced, so they contain secrets.
type settings struct {
	connect.Options
	URLs []string
	TLS  *secured

	sum any // identifies the settings in the pool without the secrets in them; see setSum
}

// resolved returns the settings with their placeholders replaced and their files read. It joins no pool.
func (a *App) resolved(ctx caddy.Context) (settings, error) {
	if err := a.check(); err != nil {
		return settings{}, err
	}
	s, err := a.resolve(caddy.NewReplacer())
	if err == nil && a.TLS != nil {
		if s.TLS, err = a.TLS.load(ctx); err == nil && !slices.ContainsFunc(s.URLs, connect.UsesTLS) {
			err = connect.ErrNoTLS
		}
	}
	s.setSum()
	return s, err
}

// check returns an error in the settings that can be found before placeholders are replaced.
func (a *App) check() error {
	if a.BodyBudget < 0 {
		return fmt.Errorf("body_budget %d: must be above 0", a.BodyBudget)
	}
	if _, err := a.options(""); err != nil {
		return err
	}
	if a.TLS != nil {
		if err := a.TLS.check(); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(a.Masters, func(u string) bool { return strings.Contains(u, "{") }) {
		return nil // the URLs are not known before Provision
	}
	if _, err := inside.Dial(func() inside.Access { return inside.Access{} }, a.Masters...); err != nil {
		return fmt.Errorf("masters: %w", err)
	}
	if a.TLS != nil && !slices.ContainsFunc(a.Masters, connect.UsesTLS) {
		return connect.ErrNoTLS
	}
	return nil
}

func (a *App) options(instance string) (connect.Options, error) {
	given := connect.Given{Timeout: a.Timeout, Prefix: a.KeyPrefix, MaxTTL: a.MaxTTL, RestartGuard: a.RestartGuard, MaxSkew: a.MaxSkew, Instance: instance}
	return given.Options(func(option string) string {
		if option == "prefix" {
			return "key_prefix"
		}
		return strings.ReplaceAll(option, " ", "_")
	})
}

// checkTTL returns an error if a rule may not have this ttl; 0 stands for the default.
func (a *App) checkTTL(ttl time.Duration) error {
	if least := 2 * a.settings.Timeout; ttl > 0 && ttl < least {
		return fmt.Errorf("ttl %v: must be at least %v, twice the timeout in the global option redlock", ttl, least)
	}
	if most := a.settings.MaxTTL; ttl > most {
		return fmt.Errorf("ttl %v: must be at most max_ttl %v: lower it, or raise max_ttl in the global option redlock of all processes", ttl, most)
	}
	return nil
}

// resolve replaces the placeholders. Its errors show no values, because they may be secrets.
func (a *App) resolve(repl *caddy.Replacer) (settings, error) {
	var s settings
	instance, err := repl.ReplaceOrErr(a.Instance, true, true)
	if err != nil {
		return s, errors.New("instance: the placeholder is unknown or empty")
	}
	if s.Options, err = a.options(instance); err != nil {
		return s, err
	}
	username, err := repl.ReplaceOrErr(a.Username, true, true)
	if err != nil {
		return s, errors.New("username: the placeholder is unknown or empty")
	}
	password, err := repl.ReplaceOrErr(a.Password, true, true)
	if err != nil {
		return s, errors.New("password: the placeholder is unknown or empty (is the variable set? does the file exist?)")
	}
	for i, master := range a.Masters {
		text, err := repl.ReplaceOrErr(master, true, true)
		if err != nil {
			return s, fmt.Errorf("masters: the placeholder of master %d is unknown or empty", i+1)
		}
		s.URLs = append(s.URLs, connect.WithUser(text, username, password))
	}
	if len(s.URLs) == 0 {
		s.URLs = []string{"memory://"}
	}
	return s, nil
}

// doctorSettings returns the settings for the command doctor. text has the settings of the app in JSON; nil if there is no app.
func doctorSettings(ctx caddy.Context, text json.RawMessage) (doctor.Settings, error) {
	app := new(App)
	if text != nil {
		if err := caddy.StrictUnmarshalJSON(text, app); err != nil {
			return doctor.Settings{}, fmt.Errorf("the app redlock: %w", err)
		}
	}
	s, err := app.resolved(ctx)
	if err != nil {
		return doctor.Settings{}, app.Source.at(err)
	}
	masters, err := s.masters()
	if err != nil {
		return doctor.Settings{}, fmt.Errorf("masters: %w", err)
	}
	return doctor.Settings{Options: s.Options, Masters: masters, LeastTTL: s.TTL()}, nil
}

// loadSealer reads the keys for the responses on the masters. Its errors don't show them.
func loadSealer(files []string) (*middleware.Sealer, error) {
	if len(files) == 0 {
		return nil, nil
	}
	keys := make([][]byte, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("remember_keys: %w", err)
		}
		if keys[i], err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(text))); err != nil {
			return nil, fmt.Errorf("remember_keys %s: not base64; make a key with: openssl rand -base64 32", file)
		}
	}
	sealer, err := middleware.NewSealer(keys...)
	if err != nil {
		return nil, fmt.Errorf("remember_keys: %w; make a key with: openssl rand -base64 32", err)
	}
	return sealer, nil
}

// TLS is how masters with rediss:// URLs are reached. Files are read again at each reload.
type TLS struct {
	// The module that provides the certificates of the authorities to trust: {"provider": "file", "pem_files": ["/etc/redis/ca.pem"]}.
	// Default: those of the system.
	CARaw json.RawMessage `json:"ca,omitempty" caddy:"namespace=tls.ca_pool.source inline_key=provider"`
	// The file with the certificate that is shown to the masters, in PEM. Default: none.
	ClientCertificateFile string `json:"client_certificate_file,omitempty"`
	// The file with the key of that certificate, in PEM. Default: none.
	ClientCertificateKeyFile string `json:"client_certificate_key_file,omitempty"`
	// The name that the certificate of each master must have. Default: the host in its URL.
	ServerName string `json:"server_name,omitempty"`
	// Whether to accept any certificate, of anybody. Only for tests: who answers in a master's place learns the password and
	// can grant a lock twice. Default: false.
	InsecureSkipVerify bool `json:"insecure_skip_verify,omitempty"`
}

// unmarshal reads the block tls; the names are those of reverse_proxy, without their tls_.
func (t *TLS) unmarshal(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.Errf("tls: unexpected %q; want a block: tls { trust_pool file /path/to/ca.pem }", d.Val())
	}
	known := settingsOf(d, t)
	for _, name := range []string{"ca", "client_certificate_file", "client_certificate_key_file"} {
		delete(known, name)
	}
	known["trust_pool"] = func() error { return trustPoolArgs(d, &t.CARaw) }
	known["client_auth"] = func() error {
		if !d.AllArgs(&t.ClientCertificateFile, &t.ClientCertificateKeyFile) {
			return d.Err("client_auth: want the file of a certificate and the file of its key")
		}
		return nil
	}
	_, err := block(d, known)
	return err
}

func trustPoolArgs(d *caddyfile.Dispenser, into *json.RawMessage) error {
	if !d.NextArg() {
		return d.Err("trust_pool: want a module, such as file /path/to/ca.pem")
	}
	name := d.Val()
	module, err := caddyfile.UnmarshalModule(d, "tls.ca_pool.source."+name)
	if err != nil {
		return err
	}
	*into = caddyconfig.JSONModuleObject(module, "provider", name, nil)
	return nil
}

// secured has the settings of TLS with their files read. The exported fields are a part of the sum in settings, because the same
// settings with other certificates in the files need new connections.
type secured struct {
	config       *tls.Config
	Trusted, Own [][]byte
	Unknown      string
	ServerName   string
	SkipVerify   bool
}

// check returns an error that can be found without the files.
func (t *TLS) check() error {
	switch {
	case (t.ClientCertificateFile == "") != (t.ClientCertificateKeyFile == ""):
		return errors.New("tls: a client certificate needs both its file and the file of its key")
	case t.CARaw == nil && t.ClientCertificateFile == "" && t.ServerName == "" && !t.InsecureSkipVerify:
		return errors.New("tls: the block is empty; want trust_pool, client_auth or server_name")
	}
	return nil
}

func (t *TLS) load(ctx caddy.Context) (*secured, error) {
	s := &secured{ServerName: t.ServerName, SkipVerify: t.InsecureSkipVerify}
	s.config = &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	if t.InsecureSkipVerify {
		ctx.Logger().Warn("tls insecure_skip_verify is on: any server that answers in a master's place learns its password and can grant locks twice; use trust_pool and server_name instead")
	}
	if t.ClientCertificateFile != "" {
		own, err := tls.LoadX509KeyPair(t.ClientCertificateFile, t.ClientCertificateKeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls: the client certificate: %w", err)
		}
		s.config.Certificates, s.Own = []tls.Certificate{own}, own.Certificate // with the public key, which changes with the other
	}
	if t.CARaw == nil {
		return s, nil
	}
	module, err := ctx.LoadModule(t, "CARaw")
	if err != nil {
		return nil, fmt.Errorf("tls: the trusted certificates: %w", err)
	}
	authorities, ok := module.(caddytls.CA)
	if !ok {
		return nil, fmt.Errorf("tls: %T provides no certificates", module)
	}
	s.config.RootCAs = authorities.CertPool()
	if listed, ok := module.(caddytls.CertificateProvider); ok {
		for _, certificate := range listed.Certificates() {
			s.Trusted = append(s.Trusted, certificate.Raw)
		}
	} else {
		s.Unknown = rand.Text() // the certificates may have changed, so each reload makes new connections
	}
	return s, nil
}

// masters doesn't connect to the masters that it returns.
func (s *settings) masters() ([]redlock.Master, error) {
	secure := s.secure()
	masters, err := inside.Dial(func() inside.Access { return inside.Access{TLS: secure} }, s.URLs...)
	return masters.([]redlock.Master), err
}

func (s *settings) secure() *tls.Config {
	if s.TLS == nil {
		return nil
	}
	return s.TLS.config
}

// series are the metrics of the process. Each configuration shows them in a registry of its own. They outlive the configuration,
// so that the counters of a rule go on after a reload if the next configuration has a rule of this name. The counters of other
// rules disappear.
var series = metrics.New()

// showMetrics shows the metrics where this configuration shows Caddy's own: at /metrics of the admin endpoint, and in the handler
// metrics.
func (a *App) showMetrics(ctx caddy.Context) error {
	a.hideBudget = series.WatchBudget(a.bodies)
	err := ctx.GetMetricsRegistry().Register(series)
	if again := new(prometheus.AlreadyRegisteredError); err != nil && !errors.As(err, again) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

func init() {
	caddy.RegisterModule(adminAPI{})
}

// adminAPI is the console at /redlock/ of Caddy's admin endpoint, under the endpoint's own access rules. It is there even without a redlock app, and
// then answers that no lock is configured.
type adminAPI struct{}

// CaddyModule returns the Caddy module information.
func (adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.redlock",
		New: func() caddy.Module { return new(adminAPI) },
	}
}

// Routes returns the one route below which everything is.
func (adminAPI) Routes() []caddy.AdminRoute {
	handler := http.StripPrefix("/redlock", console.New(lockersInUse,
		console.WithHosts("*"), // the endpoint checks the Host
		console.WithLogger(slog.New(currentLog{})), console.WithUser(certified)))
	return []caddy.AdminRoute{{
		Pattern: "/redlock/",
		Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			handler.ServeHTTP(w, r)
			return nil
		}),
	}}
}

// certified returns the subject of the certificate with which a request has come to a remote admin endpoint, or "".
func certified(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	return r.TLS.PeerCertificates[0].Subject.String()
}

var _ caddy.AdminRouter = adminAPI{}
