package redlock

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
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
	settings := fmt.Sprintf("local TOLD, FENCE_TTL, SLACK = %t, %d, %d\n", told, fenceTTL.Milliseconds(), fenceSlack.Microseconds())
	var set scriptSet
	for op, source := range map[Op]string{OpAcquire: acquireSource, OpExtend: extendSource, OpRelease: releaseSource} {
		source = settings + strings.Replace(source, "-- queue.lua\n", queueSource, 1)
		set[op].source, set[op].hash = source, redis.NewScript(source).Hash()
	}
	return &set
}

// arguments gives a command as it is sent to a server. Those that many masters get can have it made
// once, in Command.args.
func (cmd *Command) arguments() []any {
	if cmd.args != nil {
		return cmd.args
	}
	if cmd.Op == OpPing {
		return []any{"ping"}
	}
	args := make([]any, 0, 14)
	args = append(args, "evalsha", serverScripts[cmd.Op].hash, "4", cmd.Key, fenceKey(cmd.Key), queueKey(cmd.Key), leasesKey(cmd.Key),
		cmd.Token, cmd.Process, cmd.Ticket, cmd.TTL.Milliseconds(), cmd.Queue)
	switch cmd.Op {
	case OpAcquire:
		args = append(args, cmd.Fence, cmd.Former)
	case OpExtend:
		args = append(args, cmd.Fence, cmd.RefillUntil)
	}
	return args
}

// shared makes the arguments of a command once for all masters that get the same: without Queue, and
// with it.
func shared(args *[2][]any, cmd *Command) []any {
	which := 0
	if cmd.Queue {
		which = 1
	}
	if args[which] == nil {
		cmd.args = nil
		args[which] = cmd.arguments()
	}
	return args[which]
}

// The companions of a lock's key have the same hash tag, so that a cluster keeps them in one place.
func fenceKey(key string) string  { return key + ":fence" }
func queueKey(key string) string  { return key + ":queue" }
func leasesKey(key string) string { return key + ":leases" }

// pipeline sends commands and reads their replies; with the whole source of scripts where the server
// doesn't know them.
func (m *redisMaster) pipeline(pipe redis.Pipeliner, cmds []*Command, whole bool) {
	ctx := context.Background()
	m.answers = m.answers[:0]
	for _, cmd := range cmds {
		m.answers = append(m.answers, m.command(ctx, cmd, whole))
	}
	_ = pipe.BatchProcess(ctx, m.answers...) // it only queues them
	_, err := pipe.Exec(ctx)
	for i, cmd := range cmds {
		answer := m.answers[i].(*redis.Cmd)
		if answer.Err() == nil && answer.Val() == nil {
			answer.SetErr(err) // go-redis doesn't, where it fails before it has sent anything
		}
		cmd.Reply = parseReply(cmd.Op, answer)
	}
	clear(m.answers)
}

func (m *redisMaster) command(ctx context.Context, cmd *Command, whole bool) *redis.Cmd {
	args := cmd.arguments()
	if cmd.Op != OpPing && (whole || m.scripts != serverScripts) {
		args = append([]any(nil), args...)
		args[1] = m.scripts[cmd.Op].hash
		if whole {
			args[0], args[1] = "eval", m.scripts[cmd.Op].source
		}
	}
	return redis.NewCmd(ctx, args...)
}
