package doctor_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// asUser gives a user of the server these rights, and returns its URL.
func asUser(t *testing.T, server *redistest.Server, rights []string) string {
	t.Helper()
	if err := server.Client().ACLSetUser(t.Context(), "locks", append([]string{"reset", "on", ">" + secret}, rights...)...).Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Replace(server.URL(), "//", "//locks:"+secret+"@", 1)
}

// TestRights has the line of docs/masters.md be enough for locks and for doctor, and doctor name each right of it that is missing, and no other.
func TestRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, safe...)[0]
	all := redistest.LeastRights(t)
	r := doctor.Examine(t.Context(), settings(asUser(t, server, all)))
	if found := of(r, doctor.Rights); len(found) > 0 || r.Voting != 1 || r.Masters[0].MaxmemoryPolicy == "" {
		t.Fatalf("with all of %s: %+v", all, r)
	}
	want{doctor.Note, doctor.Persistence, []string{"can't be told", "CONFIG GET"}, true}.require(t, r)
	for i, right := range all {
		if right == "resetchannels" {
			continue
		}
		s := settings(asUser(t, server, slices.Delete(slices.Clone(all), i, i+1)))
		r := doctor.Examine(t.Context(), s)
		found := of(r, doctor.Rights)
		if len(found) != 1 || found[0].Advice != "ACL SETUSER locks "+right {
			t.Errorf("without %s: %+v", right, found)
			continue
		}
		level, votes := doctor.Error, false
		if slices.Contains([]string{"+subscribe", "+publish", "&redlock:wake:*", "+info"}, right) {
			level, votes = doctor.Warning, true // the guard is off
		}
		if found[0].Level != level || r.Masters[0].Votes != votes {
			t.Errorf("without %s: %+v, votes %v", right, found[0], r.Masters[0].Votes)
		}
		server.Follow(found[0].Advice)
		if found := of(doctor.Examine(t.Context(), s), doctor.Rights); len(found) > 0 {
			t.Errorf("%s is granted, and yet: %+v", right, found)
		}
		if right == "+del" { // the key ends by itself
			redistest.RequireNoKeys(t, []*redistest.Server{server})
		} else if keys := server.Keys(); len(keys) > 0 {
			t.Errorf("without %s the keys %q are left", right, keys)
		}
	}
}

// TestFurtherRights are those that some settings need, and users of another kind.
func TestFurtherRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, safe...)[0]
	all := redistest.LeastRights(t)
	without := func(rights ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(right string) bool { return slices.Contains(rights, right) })
	}
	for name, test := range map[string]struct {
		rights []string
		url    func(string) string
		want   want
	}{
		"database":    {all, func(u string) string { return u + "/1" }, want{doctor.Error, doctor.Rights, []string{"ACL SETUSER locks +select"}, false}},
		"client name": {all, func(u string) string { return u + "?client_name=x" }, want{doctor.Error, doctor.Rights, []string{"ACL SETUSER locks +client|setname"}, false}},
		"several": {without("+lset", "+hdel", "~redlock:*"), nil,
			want{doctor.Error, doctor.Rights, []string{"ACL SETUSER locks +hdel +lset ~redlock:*"}, false}},
		"another key": {append(without("~redlock:*"), "~shop:*"), nil, want{doctor.Error, doctor.Rights, []string{"ACL SETUSER locks ~redlock:*"}, false}},
		"off":         {append(slices.Clone(all), "off"), nil, want{doctor.Error, doctor.Reachability, []string{"the user is off"}, false}},
		"password":    {all, func(u string) string { return strings.Replace(u, secret, "wrong", 1) }, want{doctor.Error, doctor.Reachability, []string{"password is wrong"}, false}},
	} {
		t.Run(name, func(t *testing.T) {
			url := asUser(t, server, test.rights)
			if test.url != nil {
				url = test.url(url)
			}
			r := doctor.Examine(t.Context(), settings(url))
			test.want.require(t, r)
			if advice := of(r, test.want.check)[0].Advice; strings.HasPrefix(advice, "ACL SETUSER") {
				server.Follow(advice)
				healed(t, settings(url), test.want.check)
			}
			if keys := server.Keys(); len(keys) > 0 {
				t.Errorf("the keys %q are left", keys)
			}
		})
	}
	s := settings(asUser(t, server, without("+set", "+del")))
	r := doctor.Examine(t.Context(), s)
	found := of(r, doctor.Rights)
	if len(found) != 2 || !strings.Contains(found[0].Text, "+del +set") || found[1].Level != doctor.Note || !strings.Contains(found[1].Text, "+rpush +zadd +hset") {
		t.Fatalf("without SET and DEL: %+v", found)
	}
	if keys := server.Keys(); len(keys) > 0 {
		t.Errorf("the keys %q are left", keys)
	}
	server.Follow(found[0].Advice)
	healed(t, s, doctor.Rights)
	s = settings(asUser(t, server, without("+info")))
	s.Guard = time.Second
	want{doctor.Error, doctor.Rights, []string{"ACL SETUSER locks +info"}, false}.require(t, doctor.Examine(t.Context(), s))
}
