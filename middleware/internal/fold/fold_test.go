package fold

import (
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
	"golang.org/x/text/unicode/norm"
)

// values are of all kinds that keys are made of.
var values = []string{
	"42", "042", "4_2", "-5", "+-5", "1.5", "1e5", "1e-5", "1.50e+2", "99999999999999999999", "7e99999", "0", "00", ".",
	"2026-1234", "2026-11-25", "1-2-3-4-5", "555-0100", "+49 89 1234", "192.168.0.1", "10-", "1_-2", "e-1", "1e", "1e5-3",
	"0x2a", "-0X2A", "0b101010", "0o52", "#2a", "&h2a", "#1001", "0xg", "0x", "#", "4 2", "0x52908400098527886e0f7030069857d2e4169ee7",
	"abc", "Abc", "ord-7", "pay_3N5", "a b", " a  b ", "straße", "ＡＢＣ", "σς", "é", "²", "٤٢", "\x00", "", " ",
	"123e4567-e89b-12d3-a456-426614174000", "12345678-1234-1234-1234-123456789012", "123E4567E89B12D3A456426614174000",
	"{123e4567-e89b-12d3-a456-426614174000}", "urn:uuid:123e4567-e89b-12d3-a456-426614174000", "1234567812341234123412345678901e",
}

// FuzzValue holds what is taken as it is against what reading it makes of it, and that a spelling is its own.
func FuzzValue(f *testing.F) {
	for _, value := range values {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if once, err := spelled(value); isPlain(value) && (err != nil || once != value) {
			t.Fatalf("%q is taken as it is, but is %q (%v)", value, once, err)
		}
		one, err := Value(value)
		if again, err2 := spelled(one); err == nil && (err2 != nil || again != one) {
			t.Fatalf("%q is %q, which is %q (%v)", value, one, again, err2)
		}
	})
}

// TestMemory holds that no kind of value takes more memory than a few copies of it: each request pays for that.
func TestMemory(t *testing.T) {
	const runs, most = 100, 2500 // bytes; a table that is made for one value takes 600 to 6000 more
	for _, value := range values {
		_, _ = Value(value) // tables are made once
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			_, _ = Value(strings.Clone(value))
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / runs; each > most {
			t.Errorf("%q takes %d bytes", value, each)
		}
	}
}

// spellings are what readers and databases take for the same value, each as a way from one to the other.
var spellings = []func(string) string{
	strings.ToUpper, strings.ToLower, cases.Upper(language.Und).String, cases.Lower(language.Und).String, cases.Fold().String,
	norm.NFC.String, norm.NFD.String, norm.NFKC.String, norm.NFKD.String,
	each('0', '9', '٠'-'0'), each('!', '~', '！'-'!'),
	func(v string) string { return " " + v }, func(v string) string { return v + " " }, func(v string) string { return v + "\u00a0" },
	func(v string) string { return strings.ReplaceAll(v, " ", "  ") },
	ifInt(func(v string) string { return "+" + v }), ifInt(func(v string) string { return v + ".0" }), ifInt(func(v string) string { return "0" + v }),
	ifInt(func(v string) string { return v[:1] + " " + v[1:] }), ifInt(inHex("0x")), ifInt(inHex("#")), ifInt(inHex("&H")),
	within("\u200b"), within("\u00ad"), within("\u0301"), within("\ufe0f"), within("\U000e0101"), each('ぁ', 'ゖ', -'ぁ'+'ァ'),
	ifInt(func(v string) string { return v + "e0" }), ifInt(func(v string) string { return v[:1] + "_" + v[1:] }),
	ifUUID(func(v string) string { return strings.ReplaceAll(v, "-", "") }), ifUUID(func(v string) string { return "{" + v + "}" }),
	ifUUID(func(v string) string { return "urn:uuid:" + v }), ifUUID(func(v string) string { return "0" + v }),
}

// each moves the characters of a range to those of another one.
func each(first, last, by rune) func(string) string {
	return func(v string) string {
		return strings.Map(func(r rune) rune {
			if first <= r && r <= last {
				r += by
			}
			return r
		}, v)
	}
}

// within puts a mark that nobody sees between the first characters, and behind the last one.
func within(mark string) func(string) string {
	return func(v string) string {
		_, size := utf8.DecodeRuneInString(v)
		return v[:size] + mark + v[size:] + mark
	}
}

func inHex(prefix string) func(string) string {
	return func(v string) string {
		if n, err := strconv.ParseUint(v, 10, 64); err == nil && n < maxExact {
			return prefix + strconv.FormatUint(n, 16)
		}
		return v
	}
}

func ifInt(spell func(string) string) func(string) string {
	return func(v string) string {
		if v == "" || strings.Trim(v, digits) != "" || len(v) > maxExponent {
			return v
		}
		return spell(v)
	}
}

func ifUUID(spell func(string) string) func(string) string {
	return func(v string) string {
		if !isOrdinaryUUID(v) {
			return v
		}
		return spell(v)
	}
}

// FuzzSpellings holds that all spellings of a value are one, or refused.
func FuzzSpellings(f *testing.F) {
	for _, value := range values {
		for i := range spellings {
			f.Add(value, uint8(i), uint8(len(value)))
		}
	}
	f.Fuzz(func(t *testing.T, value string, first, second uint8) {
		one, err := Value(value)
		if err != nil {
			return
		}
		other := spellings[int(first)%len(spellings)](value)
		other = spellings[int(second)%len(spellings)](other)
		if same, err := Value(other); err == nil && same != one {
			t.Fatalf("%q is %q, but %q is %q (%d, %d)", value, one, other, same, int(first)%len(spellings), int(second)%len(spellings))
		}
	})
}
