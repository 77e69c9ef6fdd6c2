package main

import (
	"errors"
	"strings"
	"testing"
)

func TestKeyCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string // what is printed, or a part of the error
	}{
		{[]string{"customer:{id:id}", "id=CUS_1"}, "customer:cus_1\n"},
		{[]string{"{query.a}:{header.X}", "header.X=x=y", "query.a=José"}, "jose:x%3Dy\n"},
		{nil, "no template"},
		{[]string{"customer:{id:id}"}, "key part {id:id}: missing or empty"},
		{[]string{"customer:{id:id}", "id=a b"}, "not an identifier"},
		{[]string{"customer:{id:id}", "cus_1"}, "cus_1: want one NAME=VALUE"},
		{[]string{"customer:{id:id}", "id=1", "id=2"}, "id: want one NAME=VALUE for each name"},
		{[]string{"customer:{id:id}", "od=1"}, `no placeholder reads the value "od"`},
		{[]string{"--id"}, "unknown flag"},
	} {
		cmd, out := keyCmd(), new(strings.Builder)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{}, c.args...))
		cmd.SetOut(out)
		err := cmd.Execute()
		if coded := new(coded); err != nil && (!errors.As(err, &coded) || coded.code != 64 || out.Len() > 0 || !strings.Contains(err.Error(), c.want)) || err == nil && out.String() != c.want {
			t.Errorf("%q: %q, %v; want %q", c.args, out, err, c.want)
		}
	}
}
