package redis

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// refusalMarks are those of the refusals after which the connection is made and greeted anew. The others are marked
// as ErrUnusable.
var refusalMarks = map[string]error{"READONLY ": protocol.ErrReplica, "MASTERDOWN ": protocol.ErrReplica, "LOADING ": protocol.ErrLoading}

// refusals are the errors with which a server takes no locks at all, by how they begin, each with what can be
// done about it.
var refusals = []struct{ begins, advice string }{
	{"NOAUTH ", "it needs a password"},
	{"ERR Protocol error: unauthenticated", "it needs a password"}, // for commands of more than ten words
	{"WRONGPASS ", "the user name or the password is wrong"},
	{"ERR invalid password", "the password is wrong"},
	{"NOPERM ", "grant this user the rights that docs/masters.md lists"},
	{"ERR The user executing the script can't run", "grant this user the rights that docs/masters.md lists"},
	{"ERR ACL failure in script", "grant this user the rights that docs/masters.md lists"},
	{"OOM ", "it has reached its maxmemory: raise that or delete what fills it, and set maxmemory-policy to noeviction"},
	{"READONLY ", "it is a replica: name its master or an independent server instead"},
	{"MASTERDOWN ", "it is a replica that has lost its master: name the master or an independent server instead"},
	{"MISCONF ", "it can't save to disk: see its log or, if nothing need be saved, CONFIG SET stop-writes-on-bgsave-error no"},
	{"NOREPLICAS ", "it has fewer replicas than min-replicas-to-write: bring them back, or set that to 0, as locks need no replicas"},
	{"LOADING ", "it is loading its data from disk, and takes locks again after that"},
	{"BUSY ", "a script has been running on it for too long: SCRIPT KILL ends it"},
	{"CLUSTERDOWN ", "its Redis Cluster lacks nodes or slots: see CLUSTER INFO and CLUSTER NODES"},
	{"MOVED ", "it is a node of a Redis Cluster, which has only some of the keys: name independent servers, or pass a redis.ClusterClient to NewMaster"},
	{"ERR max number of clients reached", "raise its maxclients, or close other connections to it"},
	{"ERR DB index is out of range", "leave the database out of its URL, or raise its databases"},
	{"DENIED ", "it is in protected mode: set a password on it, or bind it to an internal address"},
	{"ERR unknown command", "it must be Redis 6.2 or newer, or Valkey, and be reached without a proxy"},
}

// explained adds to a server's error what can be done about it, and marks it if the server takes no locks now.
func explained(err error) error {
	var refused redis.Error
	if !errors.As(err, &refused) {
		return err
	}
	text := refused.Error()
	if _, inner, found := strings.Cut(text, "@user_script: "); found && strings.HasPrefix(text, "ERR Error running script") {
		_, inner, _ = strings.Cut(inner, ": ") // Redis before 7.0: the line number, then the command's error
		text = "ERR " + inner
		if code, isCode := strings.CutPrefix(inner, "-"); isCode {
			text = code
		}
	}
	for _, r := range refusals {
		if strings.HasPrefix(text, r.begins) {
			return protocol.Mark(fmt.Errorf("%w (%s)", err, r.advice), cmp.Or(refusalMarks[r.begins], protocol.ErrUnusable))
		}
	}
	if strings.HasPrefix(text, "ASK ") || strings.HasPrefix(text, "TRYAGAIN ") {
		return fmt.Errorf("%w (the slot of this key is being moved to another node of the cluster: the key can be locked, renewed and released again once it is there)", err)
	}
	return err
}
