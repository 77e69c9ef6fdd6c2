package middleware_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// Each of these pairs is one text to some framework or database.
func TestTextIsComparedAsUnicodeDoes(t *testing.T) {
	t.Parallel()
	ways := map[string]func(string) *http.Request{
		"{query.id}":  func(v string) *http.Request { return keyRequest("/?id=" + url.QueryEscape(v)) },
		"{path.1}":    func(v string) *http.Request { return keyRequest("/x/" + url.PathEscape(v)) },
		"{header.Id}": func(v string) *http.Request { return keyRequest("/", "Id", v) },
		"{cookie.id}": func(v string) *http.Request { return keyRequest("/", "Cookie", "id="+url.PathEscape(v)) },
		"{form.id}":   func(v string) *http.Request { return withBody(formType, "id="+url.QueryEscape(v)) },
		"{json.id}": func(v string) *http.Request {
			text, _ := json.Marshal(v)
			return withBody(jsonType, `{"id":`+string(text)+`}`)
		},
	}
	requireOne := func(one, other string) {
		t.Helper()
		for template, request := range ways {
			key := keysFor(t, template, request(one))
			if got := keysFor(t, template, request(other)); got != key && !strings.HasPrefix(got, "refused: ") {
				t.Errorf("%s of %+q is %s, of %+q %s", template, one, key, other, got)
			}
		}
	}
	for _, pair := range [][2]string{
		{"ord-7", "ord-7\u200b"}, {"ord-7", "\u2060ord-7"}, {"ord-7", "ord\u00ad-7"}, {"ord-7", "\u2800ord-7\u3164"}, // Laravel, Symfony
		{"42", "4\u200d2"}, {"42", "\u202a42\u202c"}, {"42", "42\U000e0020"},
		{"しみず", "シミズ"}, {"しみず", "ｼﾐｽﾞ"}, {"はは", "ばば"}, {"いすゞ", "イスヾ"}, {"かー", "カー"}, // MySQL and MariaDB
		{"काम", "काम\u200d"}, {"محمد", "مُحَمَّد"}, {"محمد", "محـــمد"}, {"ירושלים", "יְרוּשָׁלַיִם"}, {"มา", "ม้า"},
		{"❤", "❤\ufe0f"}, {"葛", "葛\U000e0100"}, {"étudiante", "e\u0301tudi\u00adante"}, {"Καλημέρα", "ΚΑΛΗΜΕΡΑ"},
	} {
		requireOne(pair[0], pair[1])
		requireOne(pair[1], pair[0])
	}
	random := rand.New(rand.NewPCG(1, 2))
	marks := []rune("\u200b\u200c\u200d\u200e\u2060\u00ad\u034f\u0301\u0327\u0483\u05b0\u064b\u0670\u0711\u0901\u0e31\u115f\u17b4\u180e\u3164\ufe0f\ufeff\uffa0\u0640\u07fa\U0001d159\U000e0041\U000e0100")
	for _, value := range []string{"42", "ord-7", "Müller", "しみず", "заказ", "550e8400-e29b-41d4-a716-446655440000", "1e3", "2026-1234"} {
		for range 50 {
			var other strings.Builder
			for _, c := range value {
				if random.IntN(3) == 0 {
					other.WriteRune(marks[random.IntN(len(marks))])
				}
				other.WriteRune(c)
			}
			requireOne(value, other.String()+string(marks[random.IntN(len(marks))]))
		}
	}
}
