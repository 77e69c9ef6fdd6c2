package torture

import (
	"bytes"
	"os"
	"sync"
)

// pipedLog is a worker's standard error: a pipe, which is copied to a file for as long as somebody reads it.
type pipedLog struct {
	file   string
	theirs *os.File      // the end for the worker
	held   sync.Mutex    // while nobody reads
	copied chan struct{} // closed when all has been copied
}

func newPipedLog(file string) *pipedLog {
	to, err := os.Create(file)
	check(err)
	from, theirs, err := os.Pipe()
	check(err)
	l := &pipedLog{file: file, theirs: theirs, copied: make(chan struct{})}
	go func() {
		defer close(l.copied)
		defer func() { _, _ = from.Close(), to.Close() }()
		for buffer := make([]byte, 16<<10); ; {
			n, err := from.Read(buffer)
			l.held.Lock()
			_, _ = to.Write(bytes.ReplaceAll(buffer[:n], []byte{0}, nil))
			l.held.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return l
}

// block fills the pipe, which nobody reads until release is called: the worker's next line has no room.
func (l *pipedLog) block() (release func()) {
	l.held.Lock()
	filled := make(chan struct{})
	go func() {
		_, _ = l.theirs.Write(make([]byte, 1<<20)) // more than it can hold; the file gets none of it
		close(filled)
	}()
	return func() {
		l.held.Unlock()
		<-filled
	}
}

// close waits until all that the worker wrote, which has ended, is in the file.
func (l *pipedLog) close() {
	_ = l.theirs.Close()
	<-l.copied
}
