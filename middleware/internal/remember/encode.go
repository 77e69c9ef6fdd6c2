package remember

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// The first byte of a stored response is the version, and the second has the flags.
const (
	version = 1

	flagCompressed = 1 << 0
	flagSealed     = 1 << 1

	flagTooLarge    = 1 << 0 // from here on, flags of the response itself
	flagFingerprint = 1 << 1

	maxPlain  = 4 << 20 // the most bytes of a response before it is compressed and encrypted
	maxFields = 4096    // the most header lines and names of headers
)

// ErrUnreadable is the error of Decode. Errors that wrap it give the reason.
var ErrUnreadable = errors.New("remembered response can't be read")

// ErrTooLarge is the error of Encode for a response with more bytes or header lines than can be remembered.
var ErrTooLarge = errors.New("the response is too large to be remembered")

// ErrNotSealed is the error of Decode for a response that isn't encrypted although there is a Sealer. The response may have been stored before there
// were keys, or by somebody else who can write to the masters. ErrNotSealed matches ErrUnreadable. Without a Sealer, Decode reads such a response.
var ErrNotSealed = fmt.Errorf("%w: it is not encrypted, though there are keys", ErrUnreadable)

var errDamaged = fmt.Errorf("%w: it is damaged", ErrUnreadable)

// Encode returns the bytes that are stored for the response under the key. If there is a Sealer, it encrypts the response, which can then be read
// only under this key. Without a Sealer, equal responses have equal bytes.
func (a *Response) Encode(s *Sealer, key string) ([]byte, error) {
	if !isFinal(a.Status) {
		return nil, fmt.Errorf("a response with status %d can't be remembered: must be 200 to 999", a.Status)
	}
	if a.fields() > maxFields {
		return nil, ErrTooLarge
	}
	data := a.appendPlain([]byte{version, 0})
	if len(data)-2 > maxPlain {
		return nil, ErrTooLarge
	}
	if packed, ok := compress(data[2:]); ok {
		packed[0], packed[1] = version, flagCompressed
		data = packed
	}
	if s == nil {
		return data, nil
	}
	return s.seal(data[0], data[1]|flagSealed, data[2:], key)
}

func (a *Response) fields() int {
	n := len(a.Removed) + len(a.Header)
	for _, values := range a.Header {
		n += len(values)
	}
	return n
}

// appendPlain appends the response to data, the body last and without its length.
func (a *Response) appendPlain(data []byte) []byte {
	data = slices.Grow(data, len(a.Body)+512)
	data = binary.AppendUvarint(data, uint64(a.Status))
	var flags byte
	if a.TooLarge {
		flags |= flagTooLarge
	}
	if a.Fingerprint == (Fingerprint{}) {
		data = append(data, flags)
	} else {
		data = append(data, flags|flagFingerprint)
		data = append(data, a.Fingerprint[:]...)
	}
	data = binary.AppendUvarint(data, uint64(len(a.Header)))
	for _, name := range slices.Sorted(maps.Keys(a.Header)) {
		data = appendText(data, name)
		data = appendTexts(data, a.Header[name])
	}
	data = appendTexts(data, slices.Sorted(slices.Values(a.Removed)))
	return append(data, a.Body...)
}

func appendText(data []byte, text string) []byte {
	return append(binary.AppendUvarint(data, uint64(len(text))), text...)
}

func appendTexts(data []byte, texts []string) []byte {
	data = binary.AppendUvarint(data, uint64(len(texts)))
	for _, text := range texts {
		data = appendText(data, text)
	}
	return data
}

// ErrNoRoom is the error of DecodeWithin for a response that finds no room in memory.
var ErrNoRoom = errors.New("remembered response finds no room in memory")

// Decode returns the response that Encode made into data for the key. The response may share the memory of data.
func Decode(data []byte, s *Sealer, key string) (*Response, error) {
	return DecodeWithin(data, s, key, func(int) bool { return true })
}

// DecodeWithin is Decode, but calls room before it takes memory besides data. If room returns false, the error is ErrNoRoom.
func DecodeWithin(data []byte, s *Sealer, key string, room func(bytes int) bool) (*Response, error) {
	switch {
	case len(data) < 2:
		return nil, errDamaged
	case data[0] != version:
		return nil, fmt.Errorf("%w: its version is %d, and this release reads version %d", ErrUnreadable, data[0], version)
	case data[1]&^(flagCompressed|flagSealed) != 0:
		return nil, errDamaged
	}
	payload, opened := data[2:], 0
	var err error
	sealed := data[1]&flagSealed != 0
	if sealed {
		opened = len(data)
	}
	if !room(opened) {
		return nil, ErrNoRoom
	}
	switch {
	case sealed && s == nil:
		return nil, fmt.Errorf("%w: it is encrypted, and there is no key", ErrUnreadable)
	case sealed:
		payload, err = s.open(data[0], data[1], payload, key)
	case s != nil:
		return nil, ErrNotSealed
	}
	if err == nil && data[1]&flagCompressed != 0 {
		payload, err = expand(payload, func(bytes int) bool { return room(opened + bytes) })
	}
	if err != nil {
		return nil, err
	}
	return decodePlain(payload)
}

func decodePlain(data []byte) (*Response, error) {
	if len(data) > maxPlain {
		return nil, errDamaged
	}
	r := reader{rest: data, fields: maxFields}
	a := &Response{Status: int(min(r.number(), 1000))}
	flags := r.next(1)
	if r.damaged || flags[0]&^(flagTooLarge|flagFingerprint) != 0 {
		return nil, errDamaged
	}
	a.TooLarge = flags[0]&flagTooLarge != 0
	if flags[0]&flagFingerprint != 0 {
		copy(a.Fingerprint[:], r.next(sha256.Size))
	}
	var last string
	for i := r.count(); i > 0 && !r.damaged; i-- {
		name := r.text()
		if a.Header == nil {
			a.Header = make(http.Header)
		} else if name <= last {
			return nil, errDamaged
		}
		a.Header[name] = r.texts()
		last = name
	}
	a.Removed = r.texts()
	if len(r.rest) > 0 {
		a.Body = r.rest
	}
	if r.damaged || !isFinal(a.Status) {
		return nil, errDamaged
	}
	return a, nil
}

// reader reads the parts of a response one by one. A damaged part is read as empty.
type reader struct {
	rest    []byte
	fields  uint64 // how many more fields are allowed, so that damaged data can't make the reader take much more memory than the data have
	damaged bool
}

func (r *reader) next(n uint64) []byte {
	if r.damaged || n > uint64(len(r.rest)) {
		r.damaged = true
		return nil
	}
	part := r.rest[:n]
	r.rest = r.rest[n:]
	return part
}

func (r *reader) number() uint64 {
	value, n := binary.Uvarint(r.rest)
	r.next(uint64(max(n, 0)))
	r.damaged = r.damaged || n <= 0
	return value
}

func (r *reader) text() string { return string(r.next(r.number())) }

func (r *reader) count() uint64 {
	n := r.number()
	if r.damaged || n > r.fields {
		r.damaged = true
		return 0
	}
	r.fields -= n
	return n
}

func (r *reader) texts() (texts []string) {
	n := r.count()
	if n == 0 {
		return nil
	}
	texts = make([]string, n)
	for i := range texts {
		texts[i] = r.text()
	}
	return texts
}
