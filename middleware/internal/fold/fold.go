// Package fold gives each value the one spelling that it has in a lock key.
//
// Upstreams read one request in different ways. All texts that some upstream takes for the same value must make the same key: two
// keys for one value would let two requests run at once, whereas one key for two values only makes some requests wait.
// docs/keys.md says which texts count as one value, which are refused, and which differences are known to remain.
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

// maxExact is the first whole number from which on a float64 isn't exact. Many readers take numbers as float64.
const maxExact = 1 << 53

// maxExponent is the largest exponent of ten that a float64 can have.
const maxExponent = 308

const (
	digits    = "0123456789"
	hexDigits = digits + "abcdef"
	inNumbers = " +-._e" // the characters that a number may have besides digits
)

// maxFolded is how many bytes a value with characters beyond ASCII may have, because NFKC turns one byte into up to 11 bytes, and the key has up to
// three bytes for each of these. ASCII values from headers and paths have no such limit.
const maxFolded = 4 << 10

// Error says why no key is made from a value. Its text contains nothing from the request, so clients may see it.
type Error string

func (e Error) Error() string { return string(e) }

// ErrBadText is the error for a value that different readers turn into different texts.
const ErrBadText Error = "not valid UTF-8, or with a character that controls, is private, or is newer than Unicode 15"

// ErrBlankUUID is the error for a value that some readers take for a UUID with a blank beside it, and others for a text.
const ErrBlankUUID Error = "hexadecimal digits that are a UUID only with the blanks beside them, or without"

// ErrTooLong is the error for a value that would take too much memory.
const ErrTooLong Error = "longer than 4096 bytes, with other characters than those of ASCII"

// Value returns a value in its one spelling: in lower case, without spaces around it, with ordinary letters and digits in place of
// their variants, and with numbers in their shortest form.
func Value(value string) (string, error) {
	for range maxReadings { // the spelling of a value may itself have another spelling: without its hyphen, -1e31 is a UUID
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

// spelled does one step of Value.
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
	// If no characters remain, some readers find an empty value, and others a value.
	if strings.ContainsFunc(value, unicode.IsControl) || value == "" && !blank {
		return "", ErrBadText
	}
	short := strings.Join(strings.Fields(value), " ") // upstreams that match Bearer\s+(.*) take several spaces for one
	digits, is := uuidDigits(value)
	if !is && isUUID(folded) || is != isUUID(short) {
		return "", ErrBlankUUID
	}
	if is {
		if number, ok := foldNumber(digits); ok {
			return number, nil // some readers take a UUID without hyphens for a number
		}
		return hyphenated(digits), nil
	}
	value, _ = foldNumber(short)
	return value, nil
}

const lenUUID = 32 // hexadecimal digits

var aroundUUID = strings.NewReplacer("-", "", "urn:", "", "uuid:", "")

// uuidDigits returns the digits of a UUID in any form. Python drops all hyphens, braces, "urn:" and "uuid:", and reads the rest as one
// number. Java reads a number from each of five groups, and drops its first digits if it has too many.
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

const zeros = "00000000000000000000000000000000" // as many as a UUID has digits

// Same reports whether two values make the same key.
func Same(a, b string) bool {
	a, err := Value(a)
	b, err2 := Value(b)
	return err == nil && err2 == nil && a == b
}

func isUUID(text string) bool {
	_, ok := uuidDigits(text)
	return ok
}

// isPlain reports whether it is certain, after a quick look, that a value is already in its one spelling. Most values are.
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

// unicodeVersion is the version of Unicode whose characters a key may have. A newer release of Go may have tables of a newer version, which hardly
// change the characters of this version. TestKeysStay checks that no key changes.
const unicodeVersion = "15.0.0"

var assigned = rangetable.Assigned(unicodeVersion)

// isUncertain reports whether a character has no meaning in that version of Unicode, or is for private use, so that programs treat it differently.
func isUncertain(r rune) bool {
	return r >= utf8.RuneSelf && (!unicode.Is(assigned, r) || unicode.Is(unicode.Co, r))
}

// IsBlank reports whether some reader trims the character from the ends of a value.
func IsBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '\ufeff' }

// severalLetters replaces letters that a database takes for other letters, or whose upper case has several letters.
var severalLetters = strings.NewReplacer("ß", "ss", "æ", "ae", "œ", "oe", "ø", "o", "đ", "d", "ł", "l", "ħ", "h")

// unseen are the characters that some reader trims or some database ignores: marks, format characters and fillers.
var unseen = []*unicode.RangeTable{unicode.M, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point}

// alsoUnseen are a blank of Braille, an invisible musical note, and strokes that lengthen words in Arabic and N'Ko.
const alsoUnseen = "\u2800\U0001d159\u0640\u07fa"

const toHiragana = 'ァ' - 'ぁ'

// foldRune returns the lower case of a letter, and the ASCII digit for a digit of another script, as Python does. Letters that differ only in case
// may have several lower cases, such as σ and ς, but only one upper case, so foldRune makes the upper case first. It drops unseen characters, and
// makes hiragana of katakana, because MySQL and MariaDB compare them as equal.
func foldRune(r rune) rune {
	switch {
	case r < utf8.RuneSelf || r == 0x345: // 0x345 is a mark that becomes the letter iota in upper case
	case unicode.In(r, unseen...) || strings.ContainsRune(alsoUnseen, r):
		return -1
	case unicode.IsDigit(r):
		zero := r // Unicode has digits in runs of ten
		for unicode.IsDigit(zero - 1) {
			zero--
		}
		return '0' + (r-zero)%10
	case 'ァ' <= r && r <= 'ヶ' || r == 'ヽ':
		return r - toHiragana
	}
	return unicode.ToLower(unicode.ToUpper(r))
}

// withoutUnderscores drops underscores, and also spaces, as Spring does. A space after "e" may have been a plus sign before a form was read.
var withoutUnderscores = strings.NewReplacer("_", "", " ", "")

// foldNumber returns a number in its shortest form, and any other text as it is. It keeps whole numbers exact.
func foldNumber(text string) (shortest string, isNumber bool) {
	if hasBase(text) {
		return inBase(text)
	}
	if text == "" || strings.Trim(text, inNumbers+digits) != "" {
		return text, false
	}
	// Python and others allow underscores in large numbers, and Python's Decimal drops them wherever they are.
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

// bases has the prefixes of numbers in other bases. JavaScript, as in Fastify's schemas, reads the first three wherever it wants a
// number. Spring reads the first and "#", ASP.NET the first and the last two.
var bases = []struct {
	prefix string
	base   int
}{{"0x", 16}, {"0o", 8}, {"0b", 2}, {"#", 16}, {"&h", 16}}

func hasBase(text string) bool {
	text = strings.TrimPrefix(text, "-")
	return len(text) > 1 && (text[0] == '#' || text[0] == '&' || text[0] == '0' && strings.IndexByte("xob", text[1]) >= 0)
}

// inBase returns a number that is written in another base than ten, in decimal digits. It returns any other text as it is, and so a number of 2^53 or
// more, which is usually an address or a hash.
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

// exactNumber returns a decimal number that no float64 holds exactly, without an exponent and without zeros that don't matter. It doesn't read
// numbers above the largest float64, such as 7e99999, because they may be texts.
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

// decimal returns the sign of a number, its digits without the zeros around them, and how many digits are before the point.
func decimal(number string) (sign, all string, point int, ok bool) {
	unsigned := strings.TrimPrefix(number, "-")
	mantissa, exponent, hasExponent := strings.Cut(unsigned, "e")
	shift, err := strconv.Atoi(exponent)
	if hasExponent && err != nil || shift > maxExponent {
		return "", "", 0, false
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all = strings.TrimLeft(whole+fraction, "0")
	point = len(all) - len(fraction) + shift // counted from the first digit
	all = strings.TrimRight(all, "0")
	return number[:len(number)-len(unsigned)], all, point, all != "" && strings.Trim(all, digits) == "" && point <= maxExponent+1
}

// Wholes returns the whole numbers that some upstreams make of a JSON number with a fraction: most cut off the fraction, and some round.
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

// ShortNumber returns the shortest form of a number below 2^53, as a float64 has it.
func ShortNumber(number string) (string, bool) {
	float, err := strconv.ParseFloat(number, 64)
	if err != nil || !(math.Abs(float) < maxExact) {
		return "", false
	}
	return strconv.FormatFloat(float+0, 'f', -1, 64), true // -0+0 is 0
}

func IsDigit(c byte) bool { return '0' <= c && c <= '9' }

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

// Kind is a kind of value that a placeholder can require after a colon, such as int in {path.1:int}.
type Kind struct {
	Is  func(text string) bool
	Not string // the text of the error for other values
}

// Kinds are all kinds, by name. A value is checked before it is folded. All readers agree on a value that passes, and it has only one
// spelling, except for the case of its letters.
var Kinds = map[string]Kind{
	"int":   {IsInt, "not a whole number below 2^53 that is written as 42 is, without a plus sign or zeros in front"},
	"int64": {func(text string) bool { return isWhole(text, math.MaxInt64) }, "not a whole number of 64 bits that is written as 42 is, without a plus sign or zeros in front"},
	"uuid":  {isOrdinaryUUID, "not a UUID that is written as 8-4-4-4-12 hexadecimal digits"},
	"id":    {func(text string) bool { return isID(text, idMarks+idMarksOutsidePaths) }, "not an identifier of ASCII letters, digits and marks that no upstream reads differently"},
}

// IsPathID reports whether a text is an id that may be in a path.
func IsPathID(text string) bool { return isID(text, idMarks) }

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	maxID   = 2 << 10 // the most bytes of an identifier

	// idMarks may be in any identifier, because no reader changes them or splits at them. The other marks may be in identifiers outside of paths. In
	// a path, Rails takes the text after "." for a format, gRPC's gateway takes the text after ":" for a verb, every reader splits at "/", and Slim
	// reads "+" as a space.
	idMarks             = "-_~@=|"
	idMarksOutsidePaths = ".:/+"
)

func isID(text, marks string) bool {
	return text != "" && len(text) <= maxID && strings.Trim(text, letters+digits+marks) == ""
}

// IsInt reports whether a text is a whole number in its one spelling, which a float64 holds exactly.
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

// SameHeader reports whether some server takes two names of headers for one name. For CGI and its successors, "-", "_" and all other characters that
// are no letters or digits are the same.
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
