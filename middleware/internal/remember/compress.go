package remember

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"io"
	"sync"
)

const (
	minCompressed = 512  // bytes; to compress fewer bytes isn't worth the time
	maxRatio      = 1032 // the highest ratio that deflate reaches
)

// Writers have some 1.2 MB each, and readers 40 KB, so they are used again.
var (
	compressors = sync.Pool{New: func() any {
		w, _ := flate.NewWriter(io.Discard, flate.BestSpeed) // NewWriter fails only for unknown levels
		return w
	}}
	expanders = sync.Pool{New: func() any { return flate.NewReader(bytes.NewReader(nil)) }}
)

// compress returns two bytes that the caller fills in, the length of plain, and plain compressed. ok is false if packed would have more than nine
// tenths of plain's length.
func compress(plain []byte) (packed []byte, ok bool) {
	if len(plain) < minCompressed {
		return nil, false
	}
	out := bounded{most: len(plain) - len(plain)/10}
	out.data = binary.AppendUvarint(make([]byte, 2, len(plain)/2), uint64(len(plain)))
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&out)
	if _, err := w.Write(plain); err != nil {
		return nil, false
	}
	if err := w.Close(); err != nil {
		return nil, false
	}
	return out.data, true
}

type bounded struct {
	data []byte
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.data)+len(p) > b.most {
		return 0, io.ErrShortBuffer
	}
	b.data = append(b.data, p...)
	return len(p), nil
}

// expand undoes compress, if there is room for the result. It returns an error before it allocates memory if packed can't have the length that it
// declares.
func expand(packed []byte, room func(bytes int) bool) ([]byte, error) {
	length, n := binary.Uvarint(packed)
	if n <= 0 || length > maxPlain || length > maxRatio*uint64(len(packed)) {
		return nil, errDamaged
	}
	if !room(int(length)) {
		return nil, ErrNoRoom
	}
	source := bytes.NewReader(packed[n:])
	r := expanders.Get().(io.ReadCloser)
	defer expanders.Put(r)
	if err := r.(flate.Resetter).Reset(source, nil); err != nil {
		return nil, errDamaged
	}
	plain := make([]byte, length)
	if _, err := io.ReadFull(r, plain); err != nil {
		return nil, errDamaged
	}
	if n, err := r.Read(make([]byte, 1)); n > 0 || err != io.EOF || source.Len() > 0 {
		return nil, errDamaged
	}
	return plain, nil
}
