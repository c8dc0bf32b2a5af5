// Says who it runs as; installed setuid root in an image, it shows whether
// no_new_privs holds.
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	printf("Effective uid: %d\n", (int)geteuid());
	return 0;
}
