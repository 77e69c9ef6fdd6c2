package fold

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/rangetable"
)

// trimmed are what Laravel's TrimStrings trims (Str::INVISIBLE_CHARACTERS), but for U+2065, which is no character yet.
const trimmed = "\u0009\u0020\u00A0\u00AD\u034F\u061C\u115F\u1160\u17B4\u17B5\u180E\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200A" +
	"\u200B\u200C\u200D\u200E\u200F\u202F\u205F\u2060\u2061\u2062\u2063\u2064\u206A\u206B\u206C\u206D\u206E\u206F\u3000\u2800\u3164\uFEFF" +
	"\uFFA0\U0001D159\U0001D173\U0001D174\U0001D175\U0001D176\U0001D177\U0001D178\U0001D179\U0001D17A\U000E0020\n\r\v\x00"

// TestUnseen holds that what Laravel, Symfony's forms ([\pZ\p{Cc}\p{Cf}]) and JavaScript trim makes no other key, nor a mark that
// databases pass over inside of a text.
func TestUnseen(t *testing.T) {
	for r := range unicode.MaxRune + 1 {
		atEnds := unicode.In(r, unicode.Z, unicode.Cc, unicode.Cf) || strings.ContainsRune(trimmed, r)
		inside := unicode.In(r, unicode.M, unicode.Cf)
		if !utf8.ValidRune(r) || !atEnds && !inside || r == 0x345 {
			continue
		}
		mark := string(r)
		values := map[string]string{}
		if atEnds {
			values["kx"+mark], values[mark+"kx"], values[mark+"42"+mark] = "kx", "kx", "42"
		}
		if inside {
			values["k"+mark+"x"], values["4"+mark+"2"] = "kx", "42"
		}
		for value, want := range values {
			if got, err := Value(value); (err != nil || got != want) && unicode.Is(assigned, r) {
				t.Errorf("%+q is %+q (%v)", value, got, err)
			}
		}
	}
}

// keys is the hash of the keys of all characters of unicodeVersion: processes that were built with different releases of Go must agree on
// them. What later versions of Unicode add is refused, whatever tables a process has.
const keys = "2a11a4cc471f3731"

func TestKeysStay(t *testing.T) {
	hash := sha256.New()
	rangetable.Visit(rangetable.Assigned(unicodeVersion), func(r rune) {
		for _, value := range []string{string(r), "k" + string(r) + "\u0301x"} {
			key, err := Value(value)
			fmt.Fprintf(hash, "%q%t\n", key, err == nil)
		}
	})
	if got := fmt.Sprintf("%x", hash.Sum(nil)[:8]); got != keys {
		t.Errorf("keys are %s, but were %s: processes of other releases have others", got, keys)
	}
	for r := range unicode.MaxRune + 1 {
		if utf8.ValidRune(r) && !unicode.Is(assigned, r) {
			if key, err := Value("k" + string(r)); err == nil {
				t.Errorf("%U has the key %q", r, key)
			}
		}
	}
}
