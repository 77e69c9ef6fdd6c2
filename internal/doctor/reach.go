package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// reachability judges why a master could not be looked at, or not completely.
func (x *examination) reachability() []Finding {
	if x.Err == nil {
		return nil
	}
	text, advice := x.whyUnreachable(x.Err)
	return []Finding{{Level: Error, Check: Reachability, Text: text, Advice: advice, excludes: true}}
}

func (x *examination) whyUnreachable(err error) (text, advice string) {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "its name is unknown here: " + dns.Name, "Correct the name in masters, or make it known to the DNS server or /etc/hosts of this machine."
	case errors.As(err, &dns):
		return "its name can't be looked up now: " + dns.Err, "Look at this machine's DNS server (/etc/resolv.conf)."
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: nothing listens there", "Start the server, correct the port in masters, or let it listen on this address (bind in redis.conf)."
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route to it", "Look at the network of this machine, or correct the address in masters."
	case errors.Is(err, os.ErrNotExist):
		return "there is no socket at this path", "Start the server, or correct the path in masters (unixsocket in redis.conf)."
	case errors.Is(err, os.ErrPermission):
		return "this user may not open the socket", "Add the user to the group of the socket, or set unixsocketperm in redis.conf."
	}
	if text, advice = whyTLS(err); text != "" {
		return text, advice
	}
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, net.ErrClosed) || errors.As(err, &timeout) && timeout.Timeout()
	switch {
	case x.SpeaksPlain:
		return "it does not speak TLS", withoutTLS
	case late && x.Reached == "":
		return fmt.Sprintf("no connection within %v: packets are lost or dropped", x.Patience), "Look for a firewall or security group on the way, or correct the address in masters."
	case late:
		return fmt.Sprintf("it accepts connections, but does not answer within %v", x.Patience), "Look whether the server hangs: its load, swapping, a slow command or script (SLOWLOG, SCRIPT KILL), its log."
	case x.SpeaksTLS:
		return "it closes a connection without TLS, and speaks TLS", "Write rediss:// instead of redis:// in masters, or use the server's port without TLS."
	case x.Closed():
		return "it closes the connection without a word", "Look whether a Redis server listens there, and at its log; and for a proxy that can't reach its server."
	}
	if refused := x.Refused(); refused != nil {
		if text, advice = refused.Remedy(); text != "" {
			return text, sentence(advice)
		}
		return "it refuses commands: " + refused.Text, "See the server's log."
	}
	return "its reply is not of Redis's protocol", "Correct the port in masters: another kind of server listens there."
}

const withoutTLS = "Write redis:// instead of rediss:// in masters, or use the server's TLS port (tls-port in redis.conf)."

// whyTLS judges the errors of TLS; text is empty for other errors.
func whyTLS(err error) (text, advice string) {
	var noTLS tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &noTLS):
		return "it does not speak TLS", withoutTLS
	case errors.As(err, &authority):
		return "its certificate is signed by an authority that is unknown here", "Name the authority's certificate: tls { trust_pool file /path/to/ca.pem } in the global option redlock."
	case errors.As(err, &host):
		return host.Error(), "Write a name of the certificate in masters, or set tls { server_name … }, or issue a certificate for this name."
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate has expired or is not valid yet: " + strings.TrimPrefix(invalid.Error(), "x509: "), "Renew the certificate, or correct the clock of this machine."
	case errors.As(err, &invalid):
		return "its certificate is not valid: " + strings.TrimPrefix(invalid.Error(), "x509: "), "Issue another certificate for the server."
	}
	_, alert, found := strings.Cut(err.Error(), "remote error: tls: ")
	switch {
	case !found:
		return "", ""
	case strings.Contains(alert, "certificate"), strings.Contains(alert, "decrypting"): // the signature of a certificate
		return "it refuses our certificate, or needs one: " + alert, "Set tls { client_auth … } with a certificate that the server's authority has signed, or tls-auth-clients no in redis.conf."
	}
	return "TLS fails: " + alert, "Compare the versions and ciphers of TLS on both sides (tls-protocols in redis.conf)."
}

// sentence makes one of what a Locker advises.
func sentence(advice string) string { return strings.ToUpper(advice[:1]) + advice[1:] + "." }
