package redlock

import (
	"context"
	"fmt"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// forgetResult does what the end of its time does.
func (p *pair) forgetResult(key string) {
	p.client.Del(context.Background(), key+":result")
	p.model.Results.Delete(key)
}

// sameResult reports whether two replies show the same result, for about the same time.
func sameResult(a, b *protocol.Result) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Data == b.Data && a.Size == b.Size && a.Fence == b.Fence && (a.Keep-b.Keep).Abs() <= 5*expirySlack
}

// compareResults wants the same result to be remembered by both.
func (p *pair) compareResults(model *protocol.Command) {
	stored := p.client.HGetAll(context.Background(), model.Key+":result").Val()
	result, _, known := p.model.Results.Get(model.Key, p.now)
	_, _, before := p.model.Results.Get(model.Key, always)
	if known != (len(stored) > 0) || known && (stored["data"] != result.Data || stored["fence"] != fmt.Sprint(result.Fence)) {
		p.t.Errorf("%+v: the server remembers %q, want %+v", model, stored, result)
	}
	switch {
	case model.Result == nil:
	case known && result == *model.Result && model.Reply.Status == protocol.StatusReleased:
		p.seen["result stored"]++
	case model.Result.Keep == 0 && !known && before:
		p.seen["result forgotten"]++
	case known && result == *model.Result:
		p.seen["result stored in any case"]++
	default:
		p.seen["result not stored"]++
	}
}
