package remember_test

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

func randomText(r *rand.Rand, most int) string {
	text := make([]byte, r.IntN(most+1))
	for i := range text {
		text[i] = byte(r.Uint32())
	}
	return string(text)
}

func randomResponse(r *rand.Rand) *remember.Response {
	a := &remember.Response{Status: 200 + r.IntN(400), TooLarge: r.IntN(4) == 0, Header: make(http.Header)}
	for range r.IntN(6) {
		values := make([]string, r.IntN(4))
		for i := range values {
			values[i] = randomText(r, 30)
		}
		a.Header[randomText(r, 12)] = values
	}
	for range r.IntN(3) {
		a.Removed = append(a.Removed, randomText(r, 12))
	}
	switch r.IntN(3) {
	case 0:
		a.Body = []byte(randomText(r, 5000))
	case 1:
		a.Body = bytes.Repeat([]byte(randomText(r, 20)), r.IntN(500))
	}
	if r.IntN(2) == 0 {
		copy(a.Fingerprint[:], randomText(r, len(a.Fingerprint)))
	}
	return a
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	sealer := newSealer(t, newKey())
	forms := make(map[byte]int)
	for range 600 {
		a := randomResponse(r)
		for _, s := range []*remember.Sealer{nil, sealer} {
			data := encode(t, a, s)
			forms[data[1]]++
			if got := decode(t, data, s); !equal(got, a) {
				t.Fatalf("seed %d: %+v was read as %+v", seed, a, got)
			}
		}
		if !bytes.Equal(encode(t, a, nil), encode(t, a, nil)) {
			t.Fatalf("seed %d: %+v has two forms", seed, a)
		}
		if bytes.Equal(encode(t, a, sealer), encode(t, a, sealer)) {
			t.Fatalf("seed %d: the same nonce twice", seed)
		}
	}
	for form := range byte(4) {
		if forms[form] < 50 {
			t.Errorf("only %d responses had the flags %02b", forms[form], form)
		}
	}
}

func TestCompressedIfItSavesATenth(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var noise []byte
	for len(noise) < 4000 {
		noise = append(noise, byte(r.Uint32()))
	}
	for name, c := range map[string]struct {
		body       []byte
		compressed bool
	}{
		"short":               {bytes.Repeat([]byte("a"), 400), false},
		"repetitive":          {bytes.Repeat([]byte("a"), 600), true},
		"noise":               {noise, false},
		"noise, and a little": {append(bytes.Repeat([]byte("a"), 380), noise...), false},
		"noise, and enough":   {append(bytes.Repeat([]byte("a"), 800), noise...), true},
	} {
		a := &remember.Response{Status: 200, Body: c.body}
		data := encode(t, a, nil)
		if compressed := data[1]&1 != 0; compressed != c.compressed {
			t.Errorf("%s: compressed is %v", name, compressed)
		}
		if most := len(c.body) + 10; len(data) > most || c.compressed && len(data) > most-most/10 {
			t.Errorf("%s: %d bytes for %d", name, len(data), len(c.body))
		}
		if !equal(decode(t, data, nil), a) {
			t.Errorf("%s: read as another response", name)
		}
	}
}

// damagedForms returns data with each byte changed in turn, cut off at each byte, and with one more.
func damagedForms(data []byte) (forms [][]byte) {
	for i := range data {
		for _, bits := range []byte{1, 2, 3, 0x80, 0xff} {
			damaged := bytes.Clone(data)
			damaged[i] ^= bits
			forms = append(forms, damaged)
		}
		forms = append(forms, data[:i])
	}
	return append(forms, append(bytes.Clone(data), 0))
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	long := payment()
	long.Body = bytes.Repeat(long.Body, 40)
	sealer := newSealer(t, newKey(), newKey())
	for _, a := range []*remember.Response{payment(), long} {
		for _, damaged := range damagedForms(encode(t, a, sealer)) {
			if got, err := remember.Decode(damaged, sealer, storedUnder); !errors.Is(err, remember.ErrUnreadable) {
				t.Errorf("sealed: %x was read as %+v, %v", damaged, got, err)
			}
		}
		for _, damaged := range damagedForms(encode(t, a, nil)) {
			if got, err := remember.Decode(damaged, nil, storedUnder); err != nil && !errors.Is(err, remember.ErrUnreadable) || err == nil && (got.Status < 200 || got.Status > 999) {
				t.Errorf("%x was read as %+v, %v", damaged, got, err)
			}
		}
	}
}

// deflated returns the compressed form of a correct response of a length.
func deflated(length int) string {
	out := bytes.NewBuffer(binary.AppendUvarint(nil, uint64(length)))
	w, _ := flate.NewWriter(out, flate.BestSpeed)
	_, _ = w.Write(append([]byte("\xc8\x01\x00\x00\x00"), make([]byte, length-5)...))
	_ = w.Close()
	return out.String()
}

// What claims to be large must not need much memory, whoever has written it.
func TestHostile(t *testing.T) {
	huge := "\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
	zeros := strings.Repeat("\x00", 1<<20)
	var manyHeaders strings.Builder
	for i := range 1024 {
		fmt.Fprintf(&manyHeaders, "\x04%04d\x80\x1e%s", i, zeros[:30<<7])
	}
	for name, data := range map[string]string{
		"empty":                    "",
		"one byte":                 "\x01",
		"other version":            "\x02\x00\xc8\x01\x00\x00\x00",
		"unknown flag":             "\x01\x04\xc8\x01\x00\x00\x00",
		"unknown flag of response": "\x01\x00\xc8\x01\x04\x00\x00",
		"status 199":               "\x01\x00\xc7\x01\x00\x00\x00",
		"status 1000":              "\x01\x00\xe8\x07\x00\x00\x00",
		"huge status":              "\x01\x00" + huge + "\x00\x00\x00",
		"many headers":             "\x01\x00\xc8\x01\x00" + huge + zeros,
		"many values":              "\x01\x00\xc8\x01\x00\x01\x01a" + huge + zeros,
		"many removed":             "\x01\x00\xc8\x01\x00\x00" + huge + zeros,
		"as many as there may be":  "\x01\x00\xc8\x01\x00\x00\x81\x20" + zeros,
		"many values of each":      "\x01\x00\xc8\x01\x00\x80\x08" + manyHeaders.String(),
		"huge name":                "\x01\x00\xc8\x01\x00\x01" + huge + zeros,
		"the same header twice":    "\x01\x00\xc8\x01\x00\x02\x01a\x00\x01a\x00\x00",
		"number without an end":    "\x01\x00\xc8\x01\x00" + strings.Repeat("\xff", 20),
		"compressed nothing":       "\x01\x01",
		"compressed to nearly 0":   "\x01\x01\x80\x80\x80\x02" + zeros[:10],
		"larger than is read":      "\x01\x01" + huge + zeros,
		"compressed without a end": "\x01\x01\x10" + zeros[:30],
		"larger than may be":       "\x01\x01" + deflated(5<<20),
		"more after the end":       "\x01\x01" + deflated(1000) + "\x00",
		"sealed nothing":           "\x01\x02",
		"too large, uncompressed":  "\x01\x00\xc8\x01\x00\x00\x00" + strings.Repeat(zeros, 5),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := remember.Decode([]byte(data), nil, storedUnder)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, remember.ErrUnreadable) {
			t.Errorf("%s: read as %+v, %v", name, got, err)
		}
		if bytes := after.TotalAlloc - before.TotalAlloc; bytes > uint64(len(data))+1<<20 {
			t.Errorf("%s: %d bytes of memory", name, bytes)
		}
	}
}

func TestNotEncoded(t *testing.T) {
	t.Parallel()
	many := make([]string, 5000)
	for name, a := range map[string]*remember.Response{
		"status 101":  {Status: 101},
		"status 1000": {Status: 1000},
		"many values": {Status: 200, Header: http.Header{"A": many}},
		"many names":  {Status: 200, Removed: many},
		"large body":  {Status: 200, Body: make([]byte, 5<<20)},
	} {
		if data, err := a.Encode(nil, storedUnder); err == nil || data != nil {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
}

// What is written today must be read by later releases, or have another version.
func TestStoredForm(t *testing.T) {
	t.Parallel()
	a := payment()
	a.Fingerprint = [32]byte{}
	want := "0100" + "c901" + "00" + "02" +
		fmt.Sprintf("%02x%x01%02x%x", 12, "Content-Type", 16, "application/json") +
		fmt.Sprintf("%02x%x01%02x%x", 8, "Location", 12, "/payments/42") +
		"02" + fmt.Sprintf("%02x%x%02x%x", 6, "Server", 3, "Via") + fmt.Sprintf("%x", a.Body)
	if got := fmt.Sprintf("%x", encode(t, a, nil)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
