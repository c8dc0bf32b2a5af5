package registry

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestTokenServiceIsNoWayAroundHTTPS(t *testing.T) {
	s := &tokenService{host: "reg.example", trusted: []string{"auth.example"}}
	for realm, changed := range map[string]bool{
		"https://auth.example/t":      true,
		"https://AUTH.example/t":      true,
		"http://auth.example/t":       false,
		"https://u:p@auth.example/t":  false,
		"https://auth.example:8443/t": false,
		"https://other.example/t":     false,
		"ftp://auth.example/t":        false,
		"%":                           false,
	} {
		h := http.Header{"Www-Authenticate": {`Bearer service="s",realm="` + realm + `"`}}
		s.redirect(h, &url.URL{Scheme: "https", Host: "reg.example"})
		if got := strings.Contains(h.Get("Www-Authenticate"), `realm="https://reg.example`+tokenPath); got != changed {
			t.Errorf("%s: %s", realm, h.Get("Www-Authenticate"))
		}
	}
}
