//go:build !linux

package redistest

// Fill skips the test: it needs Linux, which limits the files of another process.
func (s *Server) Fill() (free func()) {
	s.tb.Skip("needs Linux")
	return nil
}
