package corpus

import "testing"

// What real clients have written is served, each request under the key of its ID.
func TestHonestRequests(t *testing.T) {
	requests, err := Sample()
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewChecker()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	clients := make(map[string]bool)
	for _, r := range requests {
		clients[r.Client] = true
		if err := c.Check(r); err != nil {
			t.Errorf("%s: %v\n%q", r.Client, err, r.Text)
		}
	}
	if t.Logf("%d requests of %d clients", len(requests), len(clients)); len(requests) < 1000 || len(clients) < 30 {
		t.Error("too few")
	}
}
