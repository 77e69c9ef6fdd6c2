package caddyredlock

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddytls"

	"github.com/caddy-redlock/caddy-redlock/internal/connect"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

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

// UnmarshalCaddyfile reads the block tls; the names are those of reverse_proxy, without their tls_.
func (t *TLS) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
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

// secured is what the settings of TLS come to. All but config tells them apart in the pool of lockers: the same settings with
// other certificates in the files need new connections.
type secured struct {
	config       *tls.Config
	Trusted, Own [][]byte
	Unknown      string
	ServerName   string
	SkipVerify   bool
}

// check returns what is wrong, as far as that can be known without the files.
func (t *TLS) check() error {
	switch {
	case (t.ClientCertificateFile == "") != (t.ClientCertificateKeyFile == ""):
		return errors.New("tls: a client certificate needs both its file and the file of its key")
	case t.CARaw == nil && t.ClientCertificateFile == "" && t.ServerName == "" && !t.InsecureSkipVerify:
		return errors.New("tls: the block is empty; want trust_pool, client_auth or server_name")
	}
	return nil
}

// load reads the files.
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
		s.Unknown = rand.Text() // they may have changed: new connections at each reload
	}
	return s, nil
}

// masters returns the masters; it doesn't connect to them.
func (s *settings) masters() ([]redlock.Master, error) { return connect.Dial(s.URLs, s.secure()) }

// secure returns the settings of TLS, or nil.
func (s *settings) secure() *tls.Config {
	if s.TLS == nil {
		return nil
	}
	return s.TLS.config
}
