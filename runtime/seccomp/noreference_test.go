//go:build !(cgo && seccomp)

package seccomp

import "testing"

func TestAgainstRunc(t *testing.T) {
	t.Error("the comparison with runc is not in this test binary: build it with CGO_ENABLED=1 -tags seccomp (make unit does)")
}
