// Package fold writes values in the one spelling in which a key has them.
//
// Upstreams read one request in different ways. Everything that some upstream takes for the same value must make one key: two
// keys for one value would let two requests run at once, whereas one key for two values only makes some requests wait.
// docs/keys.md has the table of what becomes one value, what is refused, and which differences are known to remain.
package fold

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"golang.org/x/text/unicode/rangetable"
)

// maxExact is the first whole number at which a float64, as which many readers take numbers, is no longer exact.
const maxExact = 1 << 53

// maxExponent is the largest exponent of ten that a float64 can have.
const maxExponent = 308

const (
	digits    = "0123456789"
	hexDigits = digits + "abcdef"
	inNumbers = " +-._e" // besides digits
)

// maxFolded is how many bytes a value with other characters than those of ASCII may have: NFKC makes up to 11 of one, and a key three
// of each of those. Values from headers and paths have no other limit.
const maxFolded = 4 << 10

// Error is why no key is made of a value. Its text shows nothing of the request, so that clients may see it.
type Error string

func (e Error) Error() string { return string(e) }

// ErrBadText reports a value that readers turn into different texts.
const ErrBadText Error = "not valid UTF-8, or with a character that controls, is private, or is newer than Unicode 15"

// ErrBlankUUID reports a value in which some readers find a UUID, as they count a blank beside it, where others find a text.
const ErrBlankUUID Error = "hexadecimal digits that are a UUID only with the blanks beside them, or without"

// ErrTooLong reports a value that would take too much memory.
const ErrTooLong Error = "longer than 4096 bytes, with other characters than those of ASCII"

// Value returns a value in its one spelling: in lower case, without spaces around it, with ordinary letters and digits in
// place of their variants, and with a number in its shortest form.
func Value(value string) (string, error) {
	for range maxReadings { // the spelling of one may be that of another: -1e31 is that of a UUID, but for its hyphen
		if isPlain(value) {
			break
		}
		spelling, err := spelled(value)
		if err != nil || spelling == value {
			return spelling, err
		}
		value = spelling
	}
	return value, nil
}

const maxReadings = 4

// spelled reads a value once.
func spelled(value string) (string, error) {
	if !utf8.ValidString(value) || strings.ContainsFunc(value, isUncertain) {
		return "", ErrBadText
	}
	if len(value) > maxFolded && strings.ContainsFunc(value, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return "", ErrTooLong
	}
	blank := strings.Trim(value, " \t") == ""
	folded := strings.Map(foldRune, norm.NFKD.String(value))
	value = norm.NFC.String(severalLetters.Replace(strings.TrimFunc(folded, IsBlank)))
	// Where nothing is left, some readers see nothing, others something.
	if strings.ContainsFunc(value, unicode.IsControl) || value == "" && !blank {
		return "", ErrBadText
	}
	short := strings.Join(strings.Fields(value), " ") // Bearer\s+(.*) takes any number of spaces for one
	digits, is := uuidDigits(value)
	if !is && isUUID(folded) || is != isUUID(short) {
		return "", ErrBlankUUID
	}
	if is {
		if number, ok := foldNumber(digits); ok {
			return number, nil // to some reader
		}
		return hyphenated(digits), nil
	}
	value, _ = foldNumber(short)
	return value, nil
}

const lenUUID = 32 // hexadecimal digits

var aroundUUID = strings.NewReplacer("-", "", "urn:", "", "uuid:", "")

// uuidDigits returns the digits of a UUID in any form. Python leaves out hyphens wherever they are, braces, urn: and uuid:, and reads the
// rest as a number; Java reads a number in each of five groups, and the last digits of that count.
func uuidDigits(value string) (string, bool) {
	if strings.Count(value, "-") == 4 {
		var all strings.Builder
		groups := strings.Split(value, "-")
		for i, size := range []int{8, 4, 4, 4, 12} {
			group := strings.TrimLeft(groups[i], "+ ")
			if group == "" || strings.Trim(group, hexDigits) != "" {
				break
			}
			group = zeros + group
			all.WriteString(group[len(group)-size:])
		}
		if all.Len() == lenUUID {
			return all.String(), true
		}
	}
	if len(value) < lenUUID {
		return "", false
	}
	if strings.ContainsAny(value, "-{(:") {
		value = aroundUUID.Replace(strings.Trim(value, "{}()"))
		value = strings.Trim(value, "{}()")
	}
	if len(value) != lenUUID {
		return "", false
	}
	value = strings.Map(func(r rune) rune {
		if strings.ContainsRune("_+x", r) {
			return -1
		}
		return r
	}, strings.TrimFunc(value, IsBlank))
	return (zeros + value)[len(value):], value != "" && strings.Trim(value, hexDigits) == ""
}

func hyphenated(digits string) string {
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}

const zeros = "00000000000000000000000000000000" // lenUUID of them

// Same reports whether two values make one key.
func Same(a, b string) bool {
	a, err := Value(a)
	b, err2 := Value(b)
	return err == nil && err2 == nil && a == b
}

func isUUID(text string) bool {
	_, ok := uuidDigits(text)
	return ok
}

// isPlain reports whether a value has its one spelling already, as most have.
func isPlain(value string) bool {
	uuid, is := uuidDigits(value)
	if is && value != hyphenated(uuid) {
		return false
	}
	digits, inNumber, noNumber := 0, 0, false
	for i, c := range []byte(value) {
		switch {
		case c <= ' ' || c >= 0x7f || 'A' <= c && c <= 'Z':
			return false
		case c == '-' && i > 0 && IsDigit(value[i-1]) && !is: // such as 2026-1234
			noNumber = true
		case IsDigit(c):
			digits++
		case strings.IndexByte(inNumbers, c) >= 0:
			inNumber++
		}
	}
	return value != "" && !hasBase(value) && (noNumber || digits+inNumber < len(value) || inNumber == 0 && value[0] != '0')
}

// unicodeVersion is that of the characters that a key may have. Releases of Go have the tables of other versions; of the characters
// of an old one they hardly change anything, and TestKeysStay holds that they don't.
const unicodeVersion = "15.0.0"

var assigned = rangetable.Assigned(unicodeVersion)

// isUncertain reports whether a character means something to some programs alone.
func isUncertain(r rune) bool {
	return r >= utf8.RuneSelf && (!unicode.Is(assigned, r) || unicode.Is(unicode.Co, r))
}

// IsBlank reports whether some reader trims a character from the ends of a value.
func IsBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '\ufeff' }

// severalLetters has letters that to a database are others, or whose upper case is several.
var severalLetters = strings.NewReplacer("ß", "ss", "æ", "ae", "œ", "oe", "ø", "o", "đ", "d", "ł", "l", "ħ", "h")

// unseen are characters that some reader trims or some database passes over: marks, format characters and fillers.
var unseen = []*unicode.RangeTable{unicode.M, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point}

// alsoUnseen are a blank of Braille, a note without ink, and strokes that lengthen words of Arabic and N'Ko.
const alsoUnseen = "\u2800\U0001d159\u0640\u07fa"

const toHiragana = 'ァ' - 'ぁ'

// foldRune returns the lower case of a letter, and the ASCII digit for a digit of another script, as Python reads it. Letters that
// differ in case may have several lower cases, such as σ and ς, but only one upper case. It leaves out what is unseen, and takes
// both kana for one, as MySQL and MariaDB compare texts.
func foldRune(r rune) rune {
	switch {
	case r < utf8.RuneSelf || r == 0x345: // an iota that is a letter in upper case
	case unicode.In(r, unseen...) || strings.ContainsRune(alsoUnseen, r):
		return -1
	case unicode.IsDigit(r):
		zero := r // digits come in whole sets of ten
		for unicode.IsDigit(zero - 1) {
			zero--
		}
		return '0' + (r-zero)%10
	case 'ァ' <= r && r <= 'ヶ' || r == 'ヽ':
		return r - toHiragana
	}
	return unicode.ToLower(unicode.ToUpper(r))
}

// withoutUnderscores leaves out spaces, too, as Spring does; one behind an "e" may have been a plus sign.
var withoutUnderscores = strings.NewReplacer("_", "", " ", "")

// foldNumber returns a number in its shortest form, and any other text as it is. Whole numbers stay exact.
func foldNumber(text string) (shortest string, isNumber bool) {
	if hasBase(text) {
		return inBase(text)
	}
	if text == "" || strings.Trim(text, inNumbers+digits) != "" {
		return text, false
	}
	// Large numbers have underscores in Python and others; Python's Decimal leaves them out wherever they are.
	number := strings.TrimPrefix(withoutUnderscores.Replace(text), "+")
	if whole := strings.TrimPrefix(number, "-"); whole != "" && strings.Trim(whole, digits) == "" {
		switch whole = strings.TrimLeft(whole, "0"); {
		case whole == "":
			return "0", true
		case number[0] == '-':
			return "-" + whole, true
		}
		return whole, true
	}
	if short, ok := ShortNumber(number); ok {
		return short, true
	}
	if exact, ok := exactNumber(number); ok {
		return exact, true
	}
	return text, false
}

// bases are those of numbers by what they begin with: JavaScript reads the first three wherever it wants a number, as Fastify's schemas
// do, Spring and ASP.NET the first and the last two.
var bases = []struct {
	prefix string
	base   int
}{{"0x", 16}, {"0o", 8}, {"0b", 2}, {"#", 16}, {"&h", 16}}

// hasBase reports whether a text may be a number of another base than ten.
func hasBase(text string) bool {
	text = strings.TrimPrefix(text, "-")
	return len(text) > 1 && (text[0] == '#' || text[0] == '&' || text[0] == '0' && strings.IndexByte("xob", text[1]) >= 0)
}

// inBase returns such a number in decimal digits, and any other text as it is. Larger ones than a float64 holds are addresses and hashes.
func inBase(text string) (decimal string, isNumber bool) {
	unsigned, negative := strings.CutPrefix(text, "-")
	for _, b := range bases {
		if rest, ok := strings.CutPrefix(unsigned, b.prefix); ok {
			if n, err := strconv.ParseInt(rest, b.base, 64); err == nil && 0 <= n && n < maxExact && rest[0] != '+' {
				if negative {
					n = -n
				}
				return strconv.FormatInt(n, 10), true
			}
		}
	}
	return text, false
}

// exactNumber returns a decimal number that no float64 holds, without an exponent and zeros that don't matter. Larger ones than a
// float64 has may be texts, such as 7e99999.
func exactNumber(number string) (string, bool) {
	sign, all, point, ok := decimal(number)
	switch {
	case !ok || point < 1:
		return "", false
	case point < len(all):
		return sign + all[:point] + "." + all[point:], true
	}
	return sign + all + strings.Repeat("0", point-len(all)), true
}

// decimal returns the sign of a number and its digits, without zeros around them, and how many of them stand before the point.
func decimal(number string) (sign, all string, point int, ok bool) {
	unsigned := strings.TrimPrefix(number, "-")
	mantissa, exponent, hasExponent := strings.Cut(unsigned, "e")
	shift, err := strconv.Atoi(exponent)
	if hasExponent && err != nil || shift > maxExponent {
		return "", "", 0, false
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all = strings.TrimLeft(whole+fraction, "0")
	point = len(all) - len(fraction) + shift // from the left
	all = strings.TrimRight(all, "0")
	return number[:len(number)-len(unsigned)], all, point, all != "" && strings.Trim(all, digits) == "" && point <= maxExponent+1
}

// Wholes returns the whole numbers that binders make of a number of JSON that has a fraction: most cut it off, some round.
func Wholes(number string) []string {
	sign, all, point, ok := decimal(strings.ToLower(number))
	if !ok || point >= len(all) {
		return nil
	}
	wholes := []string{"0"}
	if point > 0 {
		wholes[0] = sign + all[:point]
	}
	if float, err := strconv.ParseFloat(number, 64); err == nil && math.Abs(float) < maxExact {
		wholes = append(wholes, strconv.FormatFloat(math.Round(float)+0, 'f', -1, 64))
	}
	return wholes
}

// ShortNumber returns the shortest form of a number below 2^53 in the value that a float64 has for it.
func ShortNumber(number string) (string, bool) {
	float, err := strconv.ParseFloat(number, 64)
	if err != nil || !(math.Abs(float) < maxExact) {
		return "", false
	}
	return strconv.FormatFloat(float+0, 'f', -1, 64), true // -0+0 is 0
}

// IsDigit reports whether a byte is an ASCII digit.
func IsDigit(c byte) bool { return '0' <= c && c <= '9' }

// IsAlphanumeric reports whether a byte is an ASCII letter or digit.
func IsAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || IsDigit(c)
}

// Hex returns the value of a hexadecimal digit, and more than 15 for any other byte.
func Hex(c byte) byte {
	switch c = Lower(c); {
	case IsDigit(c):
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 16
}

// Lower returns the lower case of an ASCII letter, and any other byte as it is.
func Lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// Kind is what a placeholder may expect after a colon: {path.1:int}.
type Kind struct {
	Is  func(text string) bool // whether a text is of this kind
	Not string                 // what is said of a text that isn't
}

// Kinds are all kinds, by their names. A value is checked before it is folded: the values that pass have one spelling, except for the
// case of letters, and all readers agree on it.
var Kinds = map[string]Kind{
	"int":   {IsInt, "not a whole number below 2^53 that is written as 42 is, without a plus sign or zeros in front"},
	"int64": {func(text string) bool { return isWhole(text, math.MaxInt64) }, "not a whole number of 64 bits that is written as 42 is, without a plus sign or zeros in front"},
	"uuid":  {isOrdinaryUUID, "not a UUID that is written as 8-4-4-4-12 hexadecimal digits"},
	"id":    {func(text string) bool { return isID(text, idMarks+idMarksOutsidePaths) }, "not an identifier of ASCII letters, digits and marks that no upstream reads differently"},
}

// IsPathID is the kind id in a path.
func IsPathID(text string) bool { return isID(text, idMarks) }

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	maxID   = 2 << 10 // of a token

	// idMarks are those of identifiers that no reader changes or splits at, and the others are those that only readers of a path do: Rails
	// finds a format behind ".", gRPC's gateway a verb behind ":", all a segment behind "/", and Slim a space in "+".
	idMarks             = "-_~@=|"
	idMarksOutsidePaths = ".:/+"
)

func isID(text, marks string) bool {
	return text != "" && len(text) <= maxID && strings.Trim(text, letters+digits+marks) == ""
}

// IsInt reports whether a text is a whole number, in its one spelling, that a float64 holds exactly.
func IsInt(text string) bool { return isWhole(text, maxExact-1) }

func isWhole(text string, most int64) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && -most <= n && n <= most && strconv.FormatInt(n, 10) == text
}

func isOrdinaryUUID(text string) bool {
	text = strings.ToLower(text)
	digits, ok := uuidDigits(text)
	return ok && text == hyphenated(digits)
}

// SameHeader reports whether some server takes two names of headers for one: CGI and its successors read "-", "_" and other
// separators alike.
func SameHeader(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if foldHeader(a[i]) != foldHeader(b[i]) {
			return false
		}
	}
	return true
}

func foldHeader(c byte) byte {
	if !IsAlphanumeric(c) {
		return '-'
	}
	return Lower(c)
}
