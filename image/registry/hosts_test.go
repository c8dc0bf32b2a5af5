package registry

import "testing"

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1:5000": true, "127.9.8.7": true, "[::1]:5000": true,
		"reg.localhost:80": true, "127.0.0.1:443": false, "10.0.0.1:5000": false, "localhost.example": false, "example.com": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("isLoopback(%q) = %v", host, got)
		}
	}
}
