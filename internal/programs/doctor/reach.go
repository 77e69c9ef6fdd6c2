package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// reachability returns a finding if a master could not be examined, or not completely.
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
	if x.WhyTLS != "" {
		return x.WhyTLS, sentence(x.AdviceTLS)
	}
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, net.ErrClosed) || errors.As(err, &timeout) && timeout.Timeout()
	switch {
	case late && x.Reached == "":
		return fmt.Sprintf("no connection within %v: packets are lost or dropped", x.Patience), "Look for a firewall or security group on the way, or correct the address in masters."
	case late:
		return fmt.Sprintf("it accepts connections, but does not answer within %v", x.Patience), "Look whether the server hangs: its load, swapping, a slow command or script (SLOWLOG, SCRIPT KILL), its log."
	case x.Closed:
		return "it closes the connection without a word", "Look whether a Redis server listens there, and at its log; and for a proxy that can't reach its server."
	}
	switch refused := x.Refused; {
	case refused == nil:
	case refused.Why != "":
		return refused.Why, sentence(refused.Advice)
	default:
		return "it refuses commands: " + refused.Text, "See the server's log."
	}
	return "its reply is not of Redis's protocol", "Correct the port in masters: another kind of server listens there."
}

func sentence(advice string) string { return strings.ToUpper(advice[:1]) + advice[1:] + "." }
