package integration

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Ten megabytes of all bytes come through exec unchanged, over both transports: in and out at once,
// in when nothing goes out any more, and out when nothing comes in any more.
func TestExecCarriesMuch(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("main", forever))
	data := make([]byte, 10<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails
	data[len(data)-1] = 'x'                        // TryCrictl takes a newline at the end away
	want := digest.FromBytes(data).Encoded()
	for _, transport := range []string{"spdy", "websocket"} { // crictl's WebSocket speaks version 5 alone
		exec := func(t *testing.T, stdin []byte, script string) (stdout string) {
			t.Helper()
			out, err := n.TryCrictl(stdin, "exec", "-r", transport, "-i", c.id, "sh", "-c", script)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		t.Run(transport, func(t *testing.T) {
			if got := digest.FromString(exec(t, data, "exec cat")).Encoded(); got != want {
				t.Errorf("in and out: %s, want %s", got, want)
			}
			exec(t, data, "exec >&- 2>&-; tee /data | sha256sum > /sum")
			if got, _ := c.exec("cat", "/sum"); !strings.HasPrefix(got, want) {
				t.Errorf("in, with the outputs closed: %s, want %s", got, want)
			}
			if got := digest.FromString(exec(t, []byte("x"), "cat > /dev/null; exec cat /data")).Encoded(); got != want {
				t.Errorf("out, with the input closed: %s, want %s", got, want)
			}
		})
	}
	p.remove()
}
