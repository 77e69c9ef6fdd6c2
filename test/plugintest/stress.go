package plugintest

import (
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// testCrowd has clients meet at random keys for a moment, so that some stand in line: each is served.
func testCrowd(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	s := httptest.NewServer(handler(t, p, a, nothing, "wait", "2m"))
	defer s.Close()
	s.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 8
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				response, err := s.Client().Post(fmt.Sprint(s.URL, "/orders/", rand.Intn(30)), "", nil)
				if err != nil {
					t.Error(err)
					return
				}
				text, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if response.StatusCode != http.StatusOK {
					t.Errorf("status %d: %s", response.StatusCode, text)
				}
			}
		})
	}
	wg.Wait()
}
