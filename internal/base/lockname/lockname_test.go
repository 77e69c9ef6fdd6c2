package lockname

import "testing"

func TestOf(t *testing.T) {
	for key, want := range map[string]string{
		"":                       "",
		"order:42":               "order:42",
		"customer:cus_NffrFeUf9": "customer:cus_nffrfeuf9",
		"AZ@[`{az":               "az@[`{az",
		"É\u212aß":               "É\u212aß", // U+212A, which Unicode folds into k
		"\xffA\xc3":              "\xffa\xc3",
	} {
		if name := Of(key); name != want {
			t.Errorf("%q: %q, want %q", key, name, want)
		}
	}
}
