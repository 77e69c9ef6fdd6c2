package redlock

import (
	"context"
	"fmt"
	"reflect"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// forgetResult does what the end of its time does.
func (p *pair) forgetResult(key string) {
	p.client.Del(context.Background(), key+":result")
	p.model.Results.Delete(key)
}

// sameAnswer reports whether two replies have the same answer, where they show times about the same.
func sameAnswer(a, b protocol.Answer) bool {
	switch a := a.(type) {
	case *protocol.Result:
		b, ok := b.(*protocol.Result)
		return ok && sameResult(a, b)
	case *protocol.Inspected:
		b, ok := b.(*protocol.Inspected)
		return ok && a.Holder == b.Holder && a.Fence == b.Fence && a.Queue == b.Queue && sameResult(a.Result, b.Result) && (a.TTL-b.TTL).Abs() <= 5*expirySlack
	}
	return reflect.DeepEqual(a, b)
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
	switch asked := model.Result(); {
	case asked == nil:
	case known && result == *asked && model.Reply.Status == protocol.StatusReleased:
		p.seen["result stored"]++
	case asked.Keep == 0 && !known && before:
		p.seen["result forgotten"]++
	case known && result == *asked:
		p.seen["result stored in any case"]++
	default:
		p.seen["result not stored"]++
	}
}
