package apiserver

import (
	"net/http"
	"testing"
)

// Clients in this process are subject to their roles, and may act as others, who are then, too.
func TestInsideHasRoles(t *testing.T) {
	tests := map[string]struct {
		name, group, header, value string
		status                     int
	}{
		"administrator":            {"admin", "system:masters", "", "", http.StatusOK},
		"no rights":                {"stowaway", "", "", "", http.StatusForbidden},
		"impersonated":             {"admin", "system:masters", "Impersonate-User", "stowaway", http.StatusForbidden},
		"impersonating another":    {"stowaway", "", "Impersonate-User", "admin", http.StatusForbidden},
		"only a group":             {"admin", "system:masters", "Impersonate-Group", "g", http.StatusBadRequest},
		"only a UID":               {"admin", "system:masters", "Impersonate-Uid", "u", http.StatusBadRequest},
		"only something else":      {"admin", "system:masters", "Impersonate-Extra-X", "x", http.StatusBadRequest},
		"unknown credentials":      {"admin", "system:masters", "Authorization", "Bearer x", http.StatusUnauthorized},
		"headers of a front proxy": {"stowaway", "", "X-Remote-Group", "system:masters", http.StatusForbidden},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			config := server.ClientConfig(test.name, test.group)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, insideHost+"/api/v1/namespaces/default/secrets", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+config.BearerToken)
			if test.header != "" {
				r.Header.Set(test.header, test.value)
			}
			resp, err := config.Transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != test.status {
				t.Errorf("a list of secrets: %s", resp.Status)
			}
		})
	}
}
