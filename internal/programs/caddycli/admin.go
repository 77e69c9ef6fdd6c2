package caddycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/cli"
)

// adminFlags lead to the admin endpoint of a running Caddy.
type adminFlags struct{ config, adapter, address string }

func (f *adminFlags) AddFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&f.config, "config", "c", "", "Configuration file with the address of the admin endpoint")
	flags.StringVarP(&f.adapter, "adapter", "a", "", "Name of config adapter to apply")
	flags.StringVar(&f.address, "address", "", "Address of the admin endpoint, if it is not that of the configuration")
}

// admin is the admin endpoint of a running Caddy.
type admin struct {
	address string // as it was given
	agent   string // what redlock --agent would be given for an agent there
	origin  string
	client  http.Client
}

// socketOrigin stands for a Unix socket, which has no address. Caddy accepts it as the host there, but as no origin.
const socketOrigin = "http://127.0.0.1"

// adminPatience is how long a response may take. It includes the time in which Caddy waits for masters.
const adminPatience = 10 * time.Second

// Open returns the admin endpoint that the flags name. It doesn't connect yet. It doesn't use caddycmd.AdminAPIRequest, which waits without end,
// keeps a connection open each time, and makes a single text of an error.
func (f *adminFlags) Open(*pflag.FlagSet) (cli.Endpoint, error) {
	var text []byte
	if f.config != "" && f.address == "" {
		var err error
		if text, _, _, err = caddycmd.LoadConfig(f.config, f.adapter); err != nil {
			return nil, err
		}
		var config struct {
			Admin caddy.AdminConfig `json:"admin"`
		}
		if err := json.Unmarshal(text, &config); err == nil && config.Admin.Disabled {
			return nil, fmt.Errorf("the admin endpoint is off in %s (admin off): this command has nobody to ask", f.config)
		}
	}
	address, err := caddycmd.DetermineAdminAPIAddress(f.address, text, f.config, f.adapter)
	if err != nil {
		return nil, err
	}
	address = caddy.NewReplacer().ReplaceKnown(strings.TrimSuffix(strings.TrimPrefix(address, "http://"), "/"), "")
	parsed, err := caddy.ParseNetworkAddress(address)
	if err != nil || parsed.PortRangeSize() > 1 || parsed.IsFdNetwork() {
		return nil, fmt.Errorf("%q is not the address of an admin endpoint: want host:port or unix//path", address)
	}
	a := &admin{address: address, origin: "http://" + parsed.JoinHostPort(0)}
	dialed := parsed.JoinHostPort(0)
	a.agent = dialed
	if parsed.IsUnixNetwork() {
		a.origin = socketOrigin
		dialed, _, _ = strings.Cut(parsed.Host, "|") // the permissions of the socket
		a.agent = "unix:" + dialed
	}
	a.client.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, parsed.Network, dialed)
		},
	}
	return a, nil
}

// Close does nothing: no connection is kept.
func (a *admin) Close() {}

// Ask sends a request for a path below /redlock/, and decodes the response. An error that the module itself answers is a *console.Problem.
func (a *admin) Ask(ctx context.Context, method, path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, adminPatience)
	defer cancel()
	target := a.origin + "/redlock/" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return err
	}
	if a.origin != socketOrigin {
		r.Header.Set("Origin", a.origin) // for enforce_origin
	}
	response, err := a.client.Do(r)
	if err != nil {
		return a.unreachable(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return a.unreachable(err)
	}
	if response.Header.Get("Redlock-Agent") != "" {
		return fmt.Errorf("an agent answers at %s, and no Caddy: type redlock in place of caddy redlock, and --agent %s in place of --address", a.address, a.agent)
	}
	if known, err := cli.Decode(response.StatusCode, response.Header, body, into); known {
		return err
	}
	if response.StatusCode == http.StatusForbidden {
		return fmt.Errorf("the admin endpoint at %s refuses this address: %s; use the one that is in its configuration (admin … { origins … })", a.address, firstLine(body))
	}
	return fmt.Errorf("what answers at %s (status %d) does not know %s: it is no Caddy with this module, or one with an older version of it; see its list-modules, or use --address", a.address, response.StatusCode, "/redlock/"+path)
}

// unreachable says what to do if nobody answers.
func (a *admin) unreachable(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no response from Caddy at %s within %v", a.address, adminPatience)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("this user may not open the admin endpoint at %s", a.address)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("no Caddy answers at %s: is it running? If its admin endpoint is elsewhere, use --address or --config; with admin off it has none", a.address)
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	return fmt.Errorf("the admin endpoint at %s can't be asked: %w", a.address, err)
}

// firstLine returns the message of an error of Caddy's own, or the first line of what it is instead.
func firstLine(body []byte) string {
	var message struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &message) == nil && message.Error != "" {
		return cli.Printable(message.Error)
	}
	line, _, _ := strings.Cut(string(body), "\n")
	return cli.Printable(line)
}
