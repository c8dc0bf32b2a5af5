package apiserver

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"
)

// movesStack says whether the stack of its goroutine is moved while use runs.
//
//go:noinline
func movesStack(use func()) bool {
	var here int
	before := uintptr(unsafe.Pointer(&here))
	use()
	return uintptr(unsafe.Pointer(&here)) != before
}

// useStack uses about so many KiB of its goroutine's stack.
//
//go:noinline
func useStack(kib int) byte {
	var frame [1 << 10]byte
	if kib > 0 {
		frame[kib] = useStack(kib - 1)
	}
	return frame[kib]
}

func TestStackIsLargeEnoughAtOnce(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector makes stacks smaller that are little used
	runtime.GC()                                     // which waits for one that has begun
	moved := func(wrap func(http.Handler) http.Handler) bool {
		result := make(chan bool)
		deep := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			result <- movesStack(func() { useStack(stackRoom>>10 - 6) })
		})
		go wrap(deep).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		return <-result
	}
	if !moved(func(h http.Handler) http.Handler { return h }) {
		t.Error("the stack does not move in a request that has not grown it: this test tells nothing")
	}
	if moved(withStack) {
		t.Error("the stack has moved again")
	}
}
