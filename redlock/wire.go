package redlock

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lock.lua
	lockSource string
	//go:embed queue.lua
	queueSource string
	//go:embed acquire.lua
	acquireSource string
	//go:embed extend.lua
	extendSource string
	//go:embed release.lua
	releaseSource string

	serverScripts = newScriptSet(true)
	// In a cluster PUBLISH counts those that listen at one node.
	clusterScripts = newScriptSet(false)
)

// scriptSet has the scripts of a kind of server.
type scriptSet [OpRelease + 1]struct {
	source string
	hash   any // a string
}

// newScriptSet makes the scripts; told says whether PUBLISH tells how many hear it.
func newScriptSet(told bool) *scriptSet {
	settings := fmt.Sprintf("local call, TOLD, FENCE_TTL, SLACK = redis.call, %t, '%d', %d\n", told, fenceTTL.Milliseconds(), fenceSlack.Microseconds())
	parts := strings.NewReplacer("-- lock.lua\n", lockSource, "-- queue.lua\n", queueSource)
	var set scriptSet
	for op, source := range map[Op]string{OpAcquire: acquireSource, OpExtend: extendSource, OpRelease: releaseSource} {
		source = settings + parts.Replace(source)
		set[op].source, set[op].hash = source, redis.NewScript(source).Hash()
	}
	return &set
}

// arguments gives a command as it is sent to a server. Those that many masters get can have it made
// once, in Command.args. It points to the command's fields: go-redis follows pointers, and values
// would have to be allocated each.
func (cmd *Command) arguments() []any {
	if cmd.args != nil {
		return cmd.args
	}
	if cmd.Op == OpPing {
		return []any{"ping"}
	}
	if cmd.Alone {
		return plainRelease(&cmd.Key, &cmd.Token)
	}
	keys := companions(cmd.Key)
	args := make([]any, 0, 14)
	args = append(args, "evalsha", serverScripts[cmd.Op].hash, "4", &cmd.Key, &keys.fence, &keys.queue, &keys.leases,
		&cmd.Token, &cmd.Process, &cmd.Ticket, cmd.TTL.Milliseconds(), cmd.Queue)
	switch cmd.Op {
	case OpAcquire:
		args = append(args, &cmd.Fence)
		if cmd.Former != "" {
			args = append(args, &cmd.Former)
		}
	case OpExtend:
		args = append(args, &cmd.Fence, &cmd.RefillUntil)
	}
	return args
}

// releaseArguments makes those of a release of those of its acquire.
func releaseArguments(release *Command, acquire []any, ticket *int64) []any {
	if release.Alone {
		return plainRelease(acquire[3], acquire[7])
	}
	args := slices.Clone(acquire[:12])
	args[1], args[9], args[11] = serverScripts[OpRelease].hash, ticket, release.Queue
	return args
}

// plainRelease frees a key that has this token unmarked: see lock.lua.
func plainRelease(key, token any) []any { return []any{"lrem", key, "1", token} }

// keyNames are the companions of a lock's key. They have the same hash tag, so that a cluster keeps them
// in one place.
type keyNames struct{ fence, queue, leases string }

func companions(key string) *keyNames {
	all := key + ":fence" + key + ":queue" + key + ":leases" // allocated once
	fence, queue := len(key)+len(":fence"), 2*len(key)+len(":fence:queue")
	return &keyNames{all[:fence], all[fence:queue], all[queue:]}
}

// send sends commands and reads their replies; with the whole source of scripts where the server
// doesn't know them.
func (m *redisMaster) send(client redis.UniversalClient, cmds []*Command, whole bool) {
	ctx := context.Background()
	m.answers = slices.Grow(m.answers[:0], len(cmds))[:len(cmds)]
	for i, cmd := range cmds {
		m.answers[i] = *redis.NewCmd(ctx, m.arguments(cmd, whole)...)
	}
	var err error
	if len(cmds) == 1 {
		err = client.Process(ctx, &m.answers[0]) // a pipeline of one costs more
	} else {
		pipe := client.Pipeline()
		for i := range m.answers {
			_ = pipe.Process(ctx, &m.answers[i]) // it only queues it
		}
		_, err = pipe.Exec(ctx)
	}
	for i, cmd := range cmds {
		answer := &m.answers[i]
		if answer.Err() == nil && answer.Val() == nil {
			answer.SetErr(err) // go-redis doesn't, where it fails before it has sent anything
		}
		cmd.Reply = parseReply(cmd, answer)
	}
	clear(m.answers)
}

// arguments are the command's, for this kind of server.
func (m *redisMaster) arguments(cmd *Command, whole bool) []any {
	args := cmd.arguments()
	if cmd.Op != OpPing && !cmd.Alone && (whole || m.scripts != serverScripts) {
		args = slices.Clone(args)
		args[1] = m.scripts[cmd.Op].hash
		if whole {
			args[0], args[1] = "eval", m.scripts[cmd.Op].source
		}
	}
	return args
}
