package token

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

func TestRead(t *testing.T) {
	const good = "ghijkl.ghijklmnopqrstuv"
	for text, want := range map[string]string{good: good, " " + good + "\n": good, "": "", "abcdef": "", good + "\n" + good: ""} {
		got, err := Read(strings.NewReader(text))
		if (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q is read as %q, %v", text, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "ghijkl") {
			t.Errorf("the error quotes the token: %v", err)
		}
	}
}

func TestTokens(t *testing.T) {
	ctx, kube := t.Context(), fake.NewClientset()
	text, info, err := Create(ctx, kube, New{TTL: time.Hour, Description: "rack 7"})
	if err != nil {
		t.Fatal(err)
	}
	id, secret, err := Parse(text)
	if err != nil || id != info.ID {
		t.Fatalf("%s, %+v, %v", id, info, err)
	}
	if _, _, err := Create(ctx, kube, New{Token: "zzzzzz.0123456789abcdef"}); err != nil {
		t.Fatal(err)
	}
	s, err := kube.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-"+id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := s.StringData; s.Type != corev1.SecretTypeBootstrapToken || d["token-secret"] != secret ||
		d["usage-bootstrap-signing"] != "true" || d["usage-bootstrap-authentication"] != "true" || d["auth-extra-groups"] != JoinersGroup {
		t.Errorf("%s, %v", s.Type, d)
	}
	asStored(ctx, t, kube)
	list, err := List(ctx, kube)
	if err != nil || len(list) != 2 || list[0].ID != id || list[0].Description != "rack 7" || !list[0].Expires.Equal(info.Expires) ||
		list[1].ID != "zzzzzz" || !list[1].Expires.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	if err := Delete(ctx, kube, text); err != nil {
		t.Error(err)
	}
	if list, err := List(ctx, kube); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// asStored does to Secrets what the API server does: it writes stringData into data.
func asStored(ctx context.Context, t *testing.T, kube *fake.Clientset) {
	t.Helper()
	list, err := kube.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		s.Data = map[string][]byte{}
		for k, v := range s.StringData {
			s.Data[k] = []byte(v)
		}
		if _, err := kube.CoreV1().Secrets("kube-system").Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	ctx, kube := t.Context(), fake.NewClientset()
	const one = "abcdef.0123456789abcdef"
	if _, _, err := Create(ctx, kube, New{Token: one}); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]New{
		"the ID exists": {Token: "abcdef.fedcba9876543210"}, "it is over": {TTL: -time.Second},
		"it is none": {Token: "abcdef.0123456789abcdeF"}, "a description without end": {Description: strings.Repeat("x", 2000)},
	} {
		if _, _, err := Create(ctx, kube, n); err == nil {
			t.Errorf("%s: it was created", name)
		} else if strings.Contains(err.Error(), "fedcba") || strings.Contains(err.Error(), "0123456789abcdeF") {
			t.Errorf("%s: the error tells a secret: %v", name, err)
		}
	}
	const undotted = "abcdef0123456789abcdef"
	for _, id := range []string{"none00", "../abc", "", undotted} {
		if err := Delete(ctx, kube, id); err == nil || strings.Contains(err.Error(), undotted) {
			t.Errorf("%q: %v", id, err)
		}
	}
	kube.PrependReactor("delete", "secrets", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	if err := Delete(ctx, kube, "abcdef"); err == nil || err.Error() != "delete token abcdef: away" {
		t.Error(err)
	}
}
