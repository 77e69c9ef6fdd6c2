package traefik

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Values are folded as package middleware does (internal/fold), with one difference: a value with characters that Unicode can write in
// several ways is refused here, because the standard library can't fold it. So both make the same key, or this one makes none.

const (
	maxExact    = 1 << 53 // whole numbers above this are not exact in a float64, which many readers use
	maxExponent = 308     // of ten, in a float64
	digits      = "0123456789"
	inNumbers   = "+-._e" // what numbers may contain beside digits
	idLetters   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
)

var (
	errBadText  = errors.New("not valid UTF-8, or with a control character in it")
	errFoldLong = errors.New("longer than 4096 bytes, with other characters than those of ASCII")
	errUnstable = errors.New("has a character that can be written in several ways; Caddy's module folds these")
)

// foldValue writes a value in the one way in which a key has it: in lower case, without spaces around it, and a number as
// such.
func foldValue(value string) (string, error) {
	if isPlain(value) {
		return value, nil
	}
	if !utf8.ValidString(value) {
		return "", errBadText
	}
	if len(value) > maxValue && !isASCII(value) {
		return "", errFoldLong
	}
	trimmed := strings.TrimFunc(value, isBlank)
	if trimmed == "" && strings.Trim(value, " \t") != "" { // empty to some readers only
		return "", errBadText
	}
	for _, r := range trimmed {
		if unicode.IsControl(r) {
			return "", errBadText
		}
		if r >= utf8.RuneSelf && !unicode.Is(stableRunes, r) {
			return "", errUnstable
		}
	}
	return foldNumber(strings.Map(foldRune, trimmed)), nil
}

func isASCII(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// foldsToNothing reports whether a value is blank.
func foldsToNothing(value string) bool { return strings.TrimFunc(value, isBlank) == "" }

// isPlain reports whether a value is already folded, as most are.
func isPlain(value string) bool {
	numerals, others := 0, 0
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case 'a' <= c && c <= 'z' && c != 'e':
		case isDigit(c):
			numerals++
		case strings.IndexByte(inNumbers, c) >= 0:
			others++
		case c <= ' ' || c >= 0x7f || 'A' <= c && c <= 'Z':
			return false
		}
	}
	return value != "" && (numerals+others < len(value) || others == 0 && value[0] != '0')
}

// isBlank reports whether some readers cut a character off at the ends of a value.
func isBlank(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || r == '\ufeff'
}

// foldRune returns the lower case of a letter, of which σ and ς have only one, and the ASCII digit for a digit of another script.
func foldRune(r rune) rune {
	if r < utf8.RuneSelf {
		return unicode.ToLower(r)
	}
	if !unicode.IsDigit(r) {
		return unicode.ToLower(unicode.ToUpper(r))
	}
	for _, block := range unicode.Nd.R16 { // each is of whole sets of ten
		if rune(block.Lo) <= r && r <= rune(block.Hi) {
			return '0' + (r-rune(block.Lo))%10
		}
	}
	for _, block := range unicode.Nd.R32 {
		if rune(block.Lo) <= r && r <= rune(block.Hi) {
			return '0' + (r-rune(block.Lo))%10
		}
	}
	return r
}

// foldNumber writes a number in its shortest form; other text is left as it is. Whole numbers stay exact.
func foldNumber(text string) string {
	if text == "" || strings.Trim(text, inNumbers+digits) != "" {
		return text
	}
	// Large numbers have underscores in Python and others; Python's Decimal leaves them out wherever they are.
	number := strings.TrimPrefix(strings.ReplaceAll(text, "_", ""), "+")
	whole := strings.TrimPrefix(number, "-")
	if whole != "" && strings.Trim(whole, digits) == "" {
		whole = strings.TrimLeft(whole, "0")
		if whole == "" {
			return "0"
		}
		if number[0] == '-' {
			return "-" + whole
		}
		return whole
	}
	float, err := strconv.ParseFloat(number, 64)
	if err == nil && math.Abs(float) < maxExact {
		return strconv.FormatFloat(float+0, 'f', -1, 64) // -0+0 is 0
	}
	exact := exactNumber(number)
	if exact == "" {
		return text
	}
	return exact
}

// exactNumber writes a decimal number that no float64 holds without an exponent and needless zeros. Anything else is "": numbers larger
// than those of a float64 may be texts, such as 7e99999.
func exactNumber(number string) string {
	unsigned := strings.TrimPrefix(number, "-")
	mantissa, exponent, hasExponent := strings.Cut(unsigned, "e")
	shift, err := strconv.Atoi(exponent)
	if hasExponent && err != nil || shift > maxExponent {
		return ""
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := strings.TrimLeft(whole+fraction, "0")
	point := len(all) - len(fraction) + shift // from the left
	all = strings.TrimRight(all, "0")
	if all == "" || strings.Trim(all, digits) != "" || point < 1 || point > maxExponent+1 {
		return ""
	}
	sign := number[:len(number)-len(unsigned)]
	if point < len(all) {
		return sign + all[:point] + "." + all[point:]
	}
	return sign + all + strings.Repeat("0", point-len(all))
}

// isOfKind reports whether a value is of the kind that a placeholder expects, in the only spelling of that value.
func isOfKind(kind, text string) bool {
	switch kind {
	case "int":
		return isWhole(text, maxExact-1)
	case "int64":
		return isWhole(text, math.MaxInt64)
	case "uuid":
		return isUUID(text)
	}
	return len(text) <= 128 && text != "" && strings.Trim(text, idLetters) == ""
}

func isWhole(text string, most int64) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && -most <= n && n <= most && strconv.FormatInt(n, 10) == text
}

func isUUID(text string) bool {
	if len(text) != 36 {
		return false
	}
	for i := 0; i < len(text); i++ {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if text[i] != '-' {
				return false
			}
		} else if unhex(text[i]) < 0 {
			return false
		}
	}
	return true
}
