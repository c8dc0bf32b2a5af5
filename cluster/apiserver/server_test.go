package apiserver

import (
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestWhoShowsNothingSeesHealthOnly(t *testing.T) {
	for path, want := range map[string]int{
		"/readyz": http.StatusOK, "/livez": http.StatusOK, "/healthz": http.StatusOK,
		"/": http.StatusUnauthorized, "/version": http.StatusUnauthorized, "/api/v1/namespaces": http.StatusUnauthorized,
		"/apis": http.StatusUnauthorized, "/openapi/v3": http.StatusUnauthorized, "/metrics": http.StatusUnauthorized,
	} {
		if resp, body := get(t, false, path); resp.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", path, resp.StatusCode, body, want)
		}
	}
}

func TestCredentials(t *testing.T) {
	bearer := func(token string) *rest.Config {
		c := rest.AnonymousClientConfig(overTLS(t))
		c.BearerToken = token
		return c
	}
	for _, test := range []struct {
		name   string
		config *rest.Config
		user   string
		group  string
	}{
		{"certificate", overTLS(t), "kubernetes-admin", "system:masters"},
		{"static token", bearer("static-token"), "static-user", "group-b"},
		{"in process", server.ClientConfig("jane", "devs"), "jane", "devs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			review, err := clientOf(t, test.config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			info := review.Status.UserInfo
			if info.Username != test.user || !contains(info.Groups, test.group) || !contains(info.Groups, "system:authenticated") {
				t.Errorf("taken for %+v", info)
			}
		})
	}
	if _, err := clientOf(t, bearer("guessed")).CoreV1().Pods("default").List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("guessed token: %v", err)
	}
}
