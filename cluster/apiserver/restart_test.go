package apiserver

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// serve runs a server with these options and returns it, ready, and what stops it.
func serve(t *testing.T, o Options) (*Server, func()) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-ended:
		t.Fatal(err)
	}
	return s, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	}
}

func TestARestartedServerGoesOnWhereItWas(t *testing.T) {
	o := broken(t, func(*Options) {})
	s, stop := serve(t, o)
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	made, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("a", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("b", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	open, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-open.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "b" {
		t.Errorf("event %+v", e)
	}
	stop()
	for range open.ResultChan() { // the watch ends with the server
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "a", metav1.GetOptions{}); err == nil {
		t.Error("a server that has stopped answers")
	}

	s, stop = serve(t, o)
	defer stop()
	client = clientOf(t, s.ClientConfig("admin", "system:masters"))
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("after the restart there are %v, %v", list.Items, err)
	}
	// What was before the start is not in the watch cache: as upstream, the server says so, and
	// clients list again.
	events, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if e := <-events.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("event %+v", e)
	}
	// A client that saw all events continues and misses none.
	events, err = client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("c", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-events.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "c" {
		t.Errorf("event after the restart %+v", e)
	}
}

// Who comes before the server knows the roles waits, and is not refused what he may do: kubelets,
// operators and drivers of volumes take that for final, or stay away for a minute.
func TestNoClientIsRefusedWhileRolesAreRead(t *testing.T) {
	o := broken(t, func(*Options) {})
	s, stop := serve(t, o)
	client := clientOf(t, s.ClientConfig("admin", "system:masters"))
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}
	if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), bound, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop()

	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	jane := clientOf(t, s.ClientConfig("jane")).CoreV1()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if _, err := jane.ConfigMaps("default").List(ctx, metav1.ListOptions{}); err != nil { // with the first that is served
		t.Error(err)
	}
	if _, err := jane.Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("secrets: %v", err)
	}
	select {
	case <-s.Ready(): // a hook of a server that is stopped before ends the process
		cancel()
		err = <-ended
	case err = <-ended:
	}
	if err != nil {
		t.Error(err)
	}
}
