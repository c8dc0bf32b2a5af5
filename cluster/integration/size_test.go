package integration

import (
	"os"
	"testing"
)

// TestSize: what makes it much larger is a new dependency. Of those that there are, the largest are
// there for good: the kinds of Kubernetes, and their documents. 15 MB more at once are methods that
// nothing calls: something looks methods up by name (docs/decisions/program-size.md).
func TestSize(t *testing.T) {
	const most = 112_000_000 // bytes
	st, err := os.Stat(bin("coracle-kube"))
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > most {
		t.Errorf("coracle-kube has %d bytes, at most %d are allowed", st.Size(), most)
	}
}
