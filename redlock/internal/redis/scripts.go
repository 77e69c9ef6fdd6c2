package redis

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

var (
	//go:embed lock.lua
	lockSource string
	//go:embed queue.lua
	queueSource string
	//go:embed fence.lua
	fenceSource string
	//go:embed take.lua
	takeSource string
	//go:embed result.lua
	resultSource string
	//go:embed fast.lua
	fastSource string
	//go:embed keep.lua
	keepSource string
	//go:embed renew.lua
	renewSource string
	//go:embed slots.lua
	slotsSource string
	//go:embed acquire.lua
	acquireSource string
	//go:embed extend.lua
	extendSource string
	//go:embed release.lua
	releaseSource string
	//go:embed force.lua
	forceSource string
	//go:embed born.lua
	bornSource string
	//go:embed beat.lua
	beatSource string
	//go:embed inspect.lua
	inspectSource string
	//go:embed trial.lua
	trialSource string
	//go:embed names.lua
	namesSource string
	//go:embed recall.lua
	recallSource string
	//go:embed store.lua
	storeSource string

	serverScripts = newScriptSet(true)
	// In a cluster, PUBLISH returns only the number of the subscribers at one node.
	clusterScripts = newScriptSet(false)
)

// The scripts are numbered by operation. The further scripts are fast, which acquires several keys, renew, which renews several leases, keep,
// which frees several keys with their results, and begin, which begins the server's memory of processes.
const (
	fast    = protocol.Ops
	renew   = fast + 1
	keep    = renew + 1
	begin   = keep + 1
	scripts = begin + 1
)

type scriptSet [scripts]struct {
	source string
	hash   string
}

// newScriptSet returns the scripts for servers. counted reports whether PUBLISH returns the number of all subscribers on these servers.
func newScriptSet(counted bool) *scriptSet {
	settings := fmt.Sprintf("local call, COUNTED, FENCE_TTL, SLACK, MAX_OTHERS, MAX_WAITERS, RANDOM_LEN, MAX_PROCESSES, BEAT_MEMORY, OFFER, WATCH, SHORT, SLOTS = redis.call, %t, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, 1\n",
		counted, protocol.FenceTTL.Milliseconds(), protocol.FenceSlack.Microseconds(), protocol.MaxOthers, protocol.MaxWaiters, protocol.RandomLen, protocol.MaxProcesses, protocol.BeatMemory.Milliseconds(), protocol.OfferTime.Milliseconds(), protocol.WatchTime.Milliseconds(), protocol.ShortResult)
	parts := strings.NewReplacer("-- lock.lua\n", lockSource, "-- queue.lua\n", queueSource, "-- fence.lua\n", fenceSource, "-- take.lua\n", takeSource, "-- result.lua\n", resultSource, "-- slots.lua\n", slotsSource, "-- born.lua\n", bornSource)
	var set scriptSet
	for op, source := range map[protocol.Op]string{
		protocol.OpAcquire: acquireSource, protocol.OpExtend: extendSource, protocol.OpRelease: releaseSource,
		protocol.OpBeat: beatSource, protocol.OpInspect: inspectSource, protocol.OpNames: namesSource, protocol.OpRecall: recallSource, protocol.OpStore: storeSource,
		protocol.OpTrial: trialSource, fast: fastSource, keep: keepSource, renew: renewSource, begin: bornSource,
		protocol.OpForce: strings.Replace(forceSource, "-- release.lua\n", releaseSource, 1),
	} {
		source = settings + parts.Replace(source)
		set[op].source, set[op].hash = source, redis.NewScript(source).Hash()
	}
	return &set
}
