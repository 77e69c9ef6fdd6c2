package redis

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// greet asks a server what it is, and whether it is admitted. It runs at each new connection, before any command.
func greet(ctx context.Context, cn *redis.Conn, ready *time.Time, admits protocol.Admission) error {
	pipe := cn.Pipeline()
	clock := pipe.Do(ctx, "time")
	sections := []*redis.StringCmd{pipe.Info(ctx, "server"), pipe.Info(ctx, "replication"), pipe.Info(ctx, "memory")}
	_, err := pipe.Exec(ctx) // authenticates first
	received := time.Now()
	var refused redis.Error
	switch {
	case ready.IsZero():
		return err
	case err == nil, redis.HasErrorPrefix(err, "NOPERM"): // it may vote all the same
	case strings.Contains(sections[0].Val(), "_mode:sentinel"): // redis_mode or, of Valkey, server_mode; it has no TIME
	case errors.As(err, &refused):
		return &connectError{err.Error(), err}
	default:
		return err
	}
	if admits == nil {
		return nil
	}
	info := make(map[string]string)
	for _, section := range sections {
		maps.Insert(info, infoFields(section.Val()))
	}
	uptime, err := strconv.Atoi(info["uptime_in_seconds"])
	return admits.Admit(protocol.Server{
		RunID:     info["run_id"],
		Version:   info["redis_version"],
		Mode:      cmp.Or(info["redis_mode"], info["server_mode"]), // Redis, Valkey
		Uptime:    time.Duration(uptime) * time.Second,
		HasUptime: err == nil,
		Role:      info["role"],
		Memory:    memoryOf(info),
		Time:      timeOf(clock),
		Sent:      *ready,
		Received:  received,
	})
}

// Memory reads the answer to OpMemory.
func Memory(lines string) protocol.Memory { return memoryOf(maps.Collect(infoFields(lines))) }

func memoryOf(info map[string]string) protocol.Memory {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(info[name], 10, 64) // 0 if it is missing
		return n
	}
	return protocol.Memory{Used: number("used_memory"), Max: number("maxmemory"), Policy: info["maxmemory_policy"]}
}

func timeOf(clock *redis.Cmd) int64 {
	fields, _ := clock.Val().([]any)
	return serverTime(fields)
}

// infoFields reads the "name:value" lines of Redis's INFO.
func infoFields(text string) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		for line := range strings.Lines(text) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
			if ok && !yield(name, value) {
				return
			}
		}
	}
}

// connectError says why there is no connection. It wraps nothing: of an error while it connects, go-redis returns
// what is wrapped alone, and the reason would be lost.
type connectError struct {
	text  string
	cause error
}

func (e *connectError) Error() string { return e.text }

// Is makes errors.Is find the cause.
func (e *connectError) Is(target error) bool {
	return target == protocol.ErrUnreachable || errors.Is(e.cause, target)
}

// As makes errors.As find the cause.
func (e *connectError) As(target any) bool { return errors.As(e.cause, target) }
