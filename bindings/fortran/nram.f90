! nram for Fortran: memory that lives in other machines' RAM, with a budget of local memory, and versions of it that
! others observe. Nothing here does more than client/memory/nram.h, whose promises hold. Compile it with the program:
!
!   gfortran nram.f90 program.f90 -o program $(pkg-config --libs nram)
!
!   use nram
!   type(nram_memory) :: memory
!   real(real64), pointer, contiguous :: a(:, :)
!   call memory%open()                                        ! the pool and the budget from the environment
!   call memory%map(a, [4096_int64, 4096_int64], 'field')     ! zeros
!   call memory%publish(a)                                    ! what is there now is its newest version
!   ...
!   call memory%observe(a, [4096_int64, 4096_int64], 'field') ! elsewhere: the newest version, read-only
!   call memory%next(a, timeout_ms=1000, version=v)           ! goes on to the next; v is 0 after the timeout
!
! Observers need not know the extents if the producer tells them, nor where an array begins:
!
!   call memory%publish(a, arrays=[nram_described('a', a), nram_described('time', time)])  ! both lie in the mapping
!   ...
!   type(c_ptr) :: seen
!   call memory%observe_address(seen, 0_int64, 'field')       ! all that there is
!   call memory%find(b, seen, 'a')                            ! a pointer of the kind and rank of what is found
!   call memory%next_address(seen, 1000, v)                   ! then find b anew
!
! What is described is in Fortran's order. An array that a producer has in C's order is found with its dimensions the
! other way round: its a[i][j] is b(j + 1, i + 1). Only the first mapping of a version is observed: what lies in others
! cannot be found.
!
! Every subroutine has an optional `status`: 0, or the errno of nram.h; without it a failure ends the program with the
! text of nram_message(). Arrays are of real64 (of one to three dimensions), real32 (one or two) or int32 (one); others
! by map_address and c_f_pointer. They are plain memory: intrinsics and threads use them as any other. A pointer must not
! be used after unmap or close; writing to an observed array ends the program. Threads may share a memory.
module nram
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: real32, real64, int32, int64, error_unit
  implicit none
  private

  integer(c_int), parameter, public :: nram_map_read_only = 1, nram_map_attach = 2, nram_map_keep = 4, &
                                       nram_map_accept_loss = 8
  integer(c_int), parameter, public :: nram_keep_with_owner = 0, nram_keep_until_dropped = -1
  integer(c_int), parameter, public :: nram_full_drop_oldest = 0, nram_full_wait = 1, nram_full_fail = 2
  integer(c_int), parameter, public :: nram_normal = 0, nram_sequential = 1, nram_random = 2, nram_will_need = 3, &
                                       nram_dont_need = 4, nram_pin = 5, nram_unpin = 6, nram_drop = 7
  integer, parameter, public :: nram_enoent = 2, nram_eio = 5, nram_enomem = 12, nram_ebusy = 16, nram_eexist = 17, &
                                nram_einval = 22, nram_etimedout = 110, nram_einprogress = 115
  public :: nram_message, nram_described

  ! As enum nram_element.
  integer(c_int), parameter :: element_int32 = 3, element_int64 = 4, element_float32 = 10, element_float64 = 11
  integer, parameter :: dimensions_max = 8

  ! What a version says of an array: nram_described(name, array). `array` is of real64, real32, int32 or int64, of any
  ! rank, contiguous, and stays where it is until it was published; name: 255 bytes at most.
  type, public :: nram_array
    private
    character(255) :: name = ''
    type(c_ptr) :: data = c_null_ptr
    integer(c_int) :: element = 0
    integer(int32) :: dimensions = 0
    integer(int64) :: extents(dimensions_max) = 0
  end type nram_array
  interface nram_described
    module procedure described_r8, described_r4, described_i4, described_i8
  end interface nram_described

  type, public :: nram_memory
    private
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: open => memory_open
    procedure :: close => memory_close
    procedure :: map_address, observe_address
    procedure, private :: map_r8_1, map_r8_2, map_r8_3, map_r4_1, map_r4_2, map_i4_1
    generic :: map => map_r8_1, map_r8_2, map_r8_3, map_r4_1, map_r4_2, map_i4_1
    procedure, private :: observe_r8_1, observe_r8_2, observe_r8_3, observe_r4_1, observe_r4_2, observe_i4_1
    generic :: observe => observe_r8_1, observe_r8_2, observe_r8_3, observe_r4_1, observe_r4_2, observe_i4_1
    procedure :: unmap => memory_unmap
    procedure :: advise => memory_advise
    procedure :: flush => memory_flush
    procedure :: publish => memory_publish
    procedure :: published => memory_published
    procedure :: drop_version => memory_drop_version
    procedure :: next => memory_next
    procedure :: header => memory_header
    ! Of a mapping that observes, by its first address.
    procedure :: next_address, step_of, header_of, unmap_address
    procedure, private :: find_r8_0, find_r8_1, find_r8_2, find_r8_3, find_r4_1, &
                          find_r4_2, find_i4_0, find_i4_1, find_i8_0, find_i8_1
    generic :: find => find_r8_0, find_r8_1, find_r8_2, find_r8_3, find_r4_1, &
                       find_r4_2, find_i4_0, find_i4_1, find_i8_0, find_i8_1
    ! Several mappings as one version, by c_loc of each.
    procedure :: publish_all => publish_addresses
  end type nram_memory

  ! As struct nram_options and struct nram_publish_options.
  type, bind(c) :: options_t
    integer(c_size_t) :: size = 0
    integer(c_int64_t) :: budget_bytes = 0, page_bytes = 0
    integer(c_int32_t) :: handlers = 0
    integer(c_int) :: policy = 0
    integer(c_int32_t) :: timeout_ms = 0
    integer(c_int64_t) :: local_below = 0
    type(c_funptr) :: on_loss = c_null_funptr
    type(c_ptr) :: on_loss_context = c_null_ptr
    integer(c_int32_t) :: copies = 0
    type(c_ptr) :: key_file = c_null_ptr
    integer(c_int64_t) :: budget_min_bytes = 0, budget_max_bytes = 0
    type(c_funptr) :: on_budget = c_null_funptr
    type(c_ptr) :: on_budget_context = c_null_ptr
  end type options_t
  type, bind(c) :: publish_options_t
    integer(c_size_t) :: size = 0
    integer(c_int) :: keep = 0
    integer(c_int32_t) :: history = 0
    integer(c_int64_t) :: step = 0
    type(c_ptr) :: header = c_null_ptr
    integer(c_int32_t) :: most = 0
    integer(c_int) :: when_full = 0
    integer(c_int32_t) :: wait_ms = 0
    type(c_ptr) :: arrays = c_null_ptr
    integer(c_size_t) :: array_count = 0
  end type publish_options_t
  ! As struct nram_array and struct nram_version_info.
  type, bind(c) :: array_t
    integer(c_size_t) :: size = 0
    type(c_ptr) :: name = c_null_ptr, data = c_null_ptr
    integer(c_int) :: element = 0, order = 0
    integer(c_int32_t) :: dimensions = 0, mapping = 0
    integer(c_int64_t) :: offset = 0, extents(dimensions_max) = 0
  end type array_t
  type, bind(c) :: version_info_t
    integer(c_size_t) :: size = 0
    integer(c_int64_t) :: version = 0, step = 0, time_ns = 0
  end type version_info_t

  interface
    function c_nram_open(pool, options) bind(c, name='nram_open')
      import :: c_ptr
      type(c_ptr), value :: pool, options
      type(c_ptr) :: c_nram_open
    end function
    function c_nram_close(n) bind(c, name='nram_close')
      import :: c_ptr, c_int
      type(c_ptr), value :: n
      integer(c_int) :: c_nram_close
    end function
    function c_nram_error() bind(c, name='nram_error')
      import :: c_ptr
      type(c_ptr) :: c_nram_error
    end function
    function c_nram_mmap(n, length, name, flags) bind(c, name='nram_mmap')
      import :: c_ptr, c_size_t, c_int
      type(c_ptr), value :: n, name
      integer(c_size_t), value :: length
      integer(c_int), value :: flags
      type(c_ptr) :: c_nram_mmap
    end function
    function c_nram_munmap(n, address) bind(c, name='nram_munmap')
      import :: c_ptr, c_int
      type(c_ptr), value :: n, address
      integer(c_int) :: c_nram_munmap
    end function
    function c_nram_length(n, address) bind(c, name='nram_length')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: n, address
      integer(c_size_t) :: c_nram_length
    end function
    function c_nram_advise(n, address, length, advice) bind(c, name='nram_advise')
      import :: c_ptr, c_size_t, c_int
      type(c_ptr), value :: n, address
      integer(c_size_t), value :: length
      integer(c_int), value :: advice
      integer(c_int) :: c_nram_advise
    end function
    function c_nram_flush(n, address, length) bind(c, name='nram_flush')
      import :: c_ptr, c_size_t, c_int
      type(c_ptr), value :: n, address
      integer(c_size_t), value :: length
      integer(c_int) :: c_nram_flush
    end function
    function c_nram_publish_all(n, addresses, count, options, version) bind(c, name='nram_publish_all')
      import :: c_ptr, c_size_t, c_int, c_int64_t
      type(c_ptr), value :: n, options
      type(c_ptr), intent(in) :: addresses(*)
      integer(c_size_t), value :: count
      integer(c_int64_t), intent(out) :: version
      integer(c_int) :: c_nram_publish_all
    end function
    function c_nram_published(n, address, version, timeout_ms) bind(c, name='nram_published')
      import :: c_ptr, c_int, c_int32_t, c_int64_t
      type(c_ptr), value :: n, address
      integer(c_int64_t), value :: version
      integer(c_int32_t), value :: timeout_ms
      integer(c_int) :: c_nram_published
    end function
    function c_nram_drop_version(n, address, version) bind(c, name='nram_drop_version')
      import :: c_ptr, c_int, c_int64_t
      type(c_ptr), value :: n, address
      integer(c_int64_t), value :: version
      integer(c_int) :: c_nram_drop_version
    end function
    function c_nram_observe(n, name, version, got) bind(c, name='nram_observe')
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: n, name
      integer(c_int64_t), value :: version
      integer(c_int64_t), intent(out) :: got
      type(c_ptr) :: c_nram_observe
    end function
    function c_nram_next(n, address, timeout_ms, got) bind(c, name='nram_next')
      import :: c_ptr, c_int, c_int32_t, c_int64_t
      type(c_ptr), value :: n, address
      integer(c_int32_t), value :: timeout_ms
      integer(c_int64_t), intent(out) :: got
      integer(c_int) :: c_nram_next
    end function
    function c_nram_version_header(n, address) bind(c, name='nram_version_header')
      import :: c_ptr
      type(c_ptr), value :: n, address
      type(c_ptr) :: c_nram_version_header
    end function
    function c_nram_find_array(n, address, name, array) bind(c, name='nram_find_array')
      import :: c_ptr, c_int, array_t
      type(c_ptr), value :: n, address, name
      type(array_t), intent(inout) :: array
      integer(c_int) :: c_nram_find_array
    end function
    function c_nram_get_version_info(n, address, info) bind(c, name='nram_get_version_info')
      import :: c_ptr, c_int, version_info_t
      type(c_ptr), value :: n, address
      type(version_info_t), intent(inout) :: info
      integer(c_int) :: c_nram_get_version_info
    end function
    function c_strlen(text) bind(c, name='strlen')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: c_strlen
    end function
    function c_errno() bind(c, name='__errno_location')
      import :: c_ptr
      type(c_ptr) :: c_errno
    end function
  end interface

contains

  ! What went wrong in this thread's last call that failed.
  function nram_message() result(text)
    character(:), allocatable :: text
    text = to_text(c_nram_error())
  end function nram_message

  ! `pool` as nram_open() takes it; budget in bytes; 0 and '': from the environment.
  subroutine memory_open(self, pool, budget, status)
    class(nram_memory), intent(inout) :: self
    character(*), intent(in), optional :: pool
    integer(int64), intent(in), optional :: budget
    integer, intent(out), optional :: status
    character(kind=c_char), allocatable, target :: name(:)
    type(options_t), target :: options
    type(c_ptr) :: at
    options%size = c_sizeof(options)
    if (present(budget)) options%budget_bytes = budget
    at = c_null_ptr
    if (present(pool)) then
      if (len_trim(pool) > 0) then
        allocate (name, source=to_c(pool))
        at = c_loc(name)
      end if
    end if
    self%handle = c_nram_open(at, c_loc(options))
    call finish(c_associated(self%handle), 'open', status)
  end subroutine memory_open

  ! Frees everything that was mapped through it.
  subroutine memory_close(self, status)
    class(nram_memory), intent(inout) :: self
    integer, intent(out), optional :: status
    logical :: ok
    ok = c_nram_close(self%handle) == 0
    self%handle = c_null_ptr
    call finish(ok, 'close', status)
  end subroutine memory_close

  ! nram_mmap(): `bytes` of zeros, or a named region that is there (flags). Null after an error.
  subroutine map_address(self, address, bytes, name, flags, status)
    class(nram_memory), intent(in) :: self
    type(c_ptr), intent(out) :: address
    integer(int64), intent(in) :: bytes
    character(*), intent(in), optional :: name
    integer(c_int), intent(in), optional :: flags
    integer, intent(out), optional :: status
    character(kind=c_char), allocatable, target :: c_name(:)
    type(c_ptr) :: at
    integer(c_int) :: how
    at = c_null_ptr
    how = 0
    if (present(flags)) how = flags
    if (present(name)) then
      allocate (c_name, source=to_c(name))
      at = c_loc(c_name)
    end if
    address = c_nram_mmap(self%handle, int(bytes, c_size_t), at, how)
    call finish(c_associated(address), 'map', status)
  end subroutine map_address

  ! nram_observe(): the version must have `bytes`, rounded up to pages, at least; 0: what find tells is enough.
  subroutine observe_address(self, address, bytes, name, version, got, status)
    class(nram_memory), intent(in) :: self
    type(c_ptr), intent(out) :: address
    integer(int64), intent(in) :: bytes
    character(*), intent(in) :: name
    integer(int64), intent(in), optional :: version
    integer(int64), intent(out), optional :: got
    integer, intent(out), optional :: status
    character(kind=c_char), allocatable, target :: c_name(:)
    integer(int64) :: wanted, number
    wanted = 0
    number = 0
    if (present(version)) wanted = version
    allocate (c_name, source=to_c(name))
    address = c_nram_observe(self%handle, c_loc(c_name), wanted, number)
    if (present(got)) got = number
    if (c_associated(address)) then
      if (c_nram_length(self%handle, address) < bytes) then
        if (c_nram_munmap(self%handle, address) /= 0) continue
        address = c_null_ptr
        call refuse('observe: "'//name//'" is smaller than the array', status)
        return
      end if
    end if
    call finish(c_associated(address), 'observe', status)
  end subroutine observe_address

  subroutine memory_unmap(self, a, status)
    class(nram_memory), intent(in) :: self
    type(*), dimension(*), intent(in), target :: a
    integer, intent(out), optional :: status
    call self%unmap_address(c_loc(a), status)
  end subroutine memory_unmap

  subroutine unmap_address(self, address, status)
    class(nram_memory), intent(in) :: self
    type(c_ptr), intent(in) :: address
    integer, intent(out), optional :: status
    call finish(c_nram_munmap(self%handle, address) == 0, 'unmap', status)
  end subroutine unmap_address

  ! nram_advise() for the whole mapping.
  subroutine memory_advise(self, a, advice, status)
    class(nram_memory), intent(in) :: self
    type(*), dimension(*), intent(in), target :: a
    integer(c_int), intent(in) :: advice
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    at = c_loc(a)
    call finish(c_nram_advise(self%handle, at, c_nram_length(self%handle, at), advice) == 0, 'advise', status)
  end subroutine memory_advise

  subroutine memory_flush(self, a, status)
    class(nram_memory), intent(in) :: self
    type(*), dimension(*), intent(in), target :: a
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    at = c_loc(a)
    call finish(c_nram_flush(self%handle, at, c_nram_length(self%handle, at)) == 0, 'flush', status)
  end subroutine memory_flush

  ! What the mapping holds now is its newest version. `header`: JSON. `arrays`: what observers find by name in it.
  subroutine memory_publish(self, a, version, step, header, keep, history, status, most, when_full, wait_ms, arrays)
    class(nram_memory), intent(in) :: self
    type(*), dimension(*), intent(in), target :: a
    integer(int64), intent(out), optional :: version
    integer(int64), intent(in), optional :: step
    character(*), intent(in), optional :: header
    integer(c_int), intent(in), optional :: keep
    integer, intent(in), optional :: history
    integer, intent(out), optional :: status
    integer, intent(in), optional :: most
    integer(c_int), intent(in), optional :: when_full
    integer, intent(in), optional :: wait_ms
    type(nram_array), intent(in), optional :: arrays(:)
    call self%publish_all([c_loc(a)], version, step, header, keep, history, status, most, when_full, wait_ms, arrays)
  end subroutine memory_publish

  subroutine publish_addresses(self, addresses, version, step, header, keep, history, status, most, when_full, &
                               wait_ms, arrays)
    class(nram_memory), intent(in) :: self
    type(c_ptr), intent(in) :: addresses(:)
    integer(int64), intent(out), optional :: version
    integer(int64), intent(in), optional :: step
    character(*), intent(in), optional :: header
    integer(c_int), intent(in), optional :: keep
    integer, intent(in), optional :: history
    integer, intent(out), optional :: status
    integer, intent(in), optional :: most
    integer(c_int), intent(in), optional :: when_full
    integer, intent(in), optional :: wait_ms
    type(nram_array), intent(in), optional :: arrays(:)
    character(kind=c_char), allocatable, target :: c_header(:), c_names(:, :)
    type(array_t), allocatable, target :: c_arrays(:)
    type(publish_options_t), target :: options
    integer(int64) :: number
    integer :: i
    logical :: ok
    options%size = c_sizeof(options)
    if (present(step)) options%step = step
    if (present(keep)) options%keep = keep
    if (present(history)) options%history = history
    if (present(most)) options%most = most
    if (present(when_full)) options%when_full = when_full
    if (present(wait_ms)) options%wait_ms = wait_ms
    if (present(header)) then
      allocate (c_header, source=to_c(header))
      options%header = c_loc(c_header)
    end if
    if (present(arrays)) then
      allocate (c_names(len(arrays%name) + 1, size(arrays)), c_arrays(size(arrays)))
      do i = 1, size(arrays)
        c_names(1:len_trim(arrays(i)%name) + 1, i) = to_c(arrays(i)%name)
        c_arrays(i) = array_t(c_sizeof(c_arrays(i)), c_loc(c_names(1, i)), arrays(i)%data, arrays(i)%element, 1, &
                              arrays(i)%dimensions, 0, 0, arrays(i)%extents)
      end do
      if (size(arrays) > 0) options%arrays = c_loc(c_arrays)
      options%array_count = size(arrays)
    end if
    number = 0
    ok = c_nram_publish_all(self%handle, addresses, int(size(addresses), c_size_t), c_loc(options), number) == 0
    if (present(version)) version = number
    call finish(ok, 'publish', status)
  end subroutine publish_addresses

  ! Waits until the version (absent: the last) can be observed. nram_etimedout: not yet. nram_einprogress: it may be
  ! there or not, until a later one is.
  subroutine memory_published(self, a, timeout_ms, version, status)
    class(nram_memory), intent(in) :: self
    type(*), dimension(*), intent(in), target :: a
    integer, intent(in) :: timeout_ms
    integer(int64), intent(in), optional :: version
    integer, intent(out), optional :: status
    integer(int64) :: wanted
    wanted = 0
    if (present(version)) wanted = version
    call finish(c_nram_published(self%handle, c_loc(a), wanted, timeout_ms) == 0, 'published', status)
  end subroutine memory_published

  subroutine memory_drop_version(self, a, version, status)
    class(nram_memory), intent(in) :: self
    type(*), dimension(*), intent(in), target :: a
    integer(int64), intent(in) :: version
    integer, intent(out), optional :: status
    call finish(c_nram_drop_version(self%handle, c_loc(a), version) == 0, 'drop_version', status)
  end subroutine memory_drop_version

  ! Goes on to the newest version, as soon as there is a newer one; `version` is 0 if there was none in time.
  subroutine memory_next(self, a, timeout_ms, version, status)
    class(nram_memory), intent(in) :: self
    type(*), dimension(*), intent(in), target :: a
    integer, intent(in) :: timeout_ms
    integer(int64), intent(out) :: version
    integer, intent(out), optional :: status
    call self%next_address(c_loc(a), timeout_ms, version, status)
  end subroutine memory_next

  ! The same of a mapping that was observed by its address. What was found in it is to be found anew.
  subroutine next_address(self, address, timeout_ms, version, status)
    class(nram_memory), intent(in) :: self
    type(c_ptr), intent(in) :: address
    integer, intent(in) :: timeout_ms
    integer(int64), intent(out) :: version
    integer, intent(out), optional :: status
    version = 0
    if (c_nram_next(self%handle, address, timeout_ms, version) == 0) then
      if (present(status)) status = 0
    else if (last_errno() == nram_etimedout) then
      version = 0
      if (present(status)) status = 0
    else
      call finish(.false., 'next', status)
    end if
  end subroutine next_address

  ! The producer's count of the version that is observed at that address.
  function step_of(self, address) result(step)
    class(nram_memory), intent(in) :: self
    type(c_ptr), intent(in) :: address
    integer(int64) :: step
    type(version_info_t) :: info
    info%size = c_sizeof(info)
    call finish(c_nram_get_version_info(self%handle, address, info) == 0, 'step_of')
    step = info%step
  end function step_of

  ! What the producer has said of the observed version: JSON, or ''.
  function memory_header(self, a) result(text)
    class(nram_memory), intent(in) :: self
    type(*), dimension(*), intent(in), target :: a
    character(:), allocatable :: text
    text = self%header_of(c_loc(a))
  end function memory_header

  function header_of(self, address) result(text)
    class(nram_memory), intent(in) :: self
    type(c_ptr), intent(in) :: address
    character(:), allocatable :: text
    text = to_text(c_nram_version_header(self%handle, address))
  end function header_of

  function last_errno() result(number)
    integer :: number
    integer(c_int), pointer :: at
    call c_f_pointer(c_errno(), at)
    number = at
  end function last_errno

  subroutine finish(ok, what, status)
    logical, intent(in) :: ok
    character(*), intent(in) :: what
    integer, intent(out), optional :: status
    integer :: number
    number = 0
    if (.not. ok) number = last_errno()
    if (present(status)) then
      status = number
    else if (.not. ok) then
      write (error_unit, '(4a)') 'nram: ', what, ': ', nram_message()
      error stop 1
    end if
  end subroutine finish

  ! What the library has not refused: so nram_message() says nothing of it.
  subroutine refuse(why, status)
    character(*), intent(in) :: why
    integer, intent(out), optional :: status
    if (present(status)) then
      status = nram_einval
      return
    end if
    write (error_unit, '(2a)') 'nram: ', why
    error stop 1
  end subroutine refuse

  function to_c(text) result(c_text)
    character(*), intent(in) :: text
    character(kind=c_char), allocatable :: c_text(:)
    integer :: i
    allocate (c_text(len_trim(text) + 1))
    do i = 1, len_trim(text)
      c_text(i) = text(i:i)
    end do
    c_text(len_trim(text) + 1) = c_null_char
  end function to_c

  function to_text(c_text) result(text)
    type(c_ptr), intent(in) :: c_text
    character(:), allocatable :: text
    character(kind=c_char), pointer :: bytes(:)
    integer :: i
    if (.not. c_associated(c_text)) then
      text = ''
      return
    end if
    call c_f_pointer(c_text, bytes, [c_strlen(c_text)])
    allocate (character(size(bytes)) :: text)
    do i = 1, size(bytes)
      text(i:i) = bytes(i)
    end do
  end function to_text

  ! --- map and observe for each kind of array: the same but for its declaration.

  subroutine map_r8_1(self, a, extents, name, flags, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:)
    integer(int64), intent(in) :: extents(1)
    character(*), intent(in), optional :: name
    integer(c_int), intent(in), optional :: flags
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%map_address(at, 8 * product(extents), name, flags, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine map_r8_1

  subroutine observe_r8_1(self, a, extents, name, version, got, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:)
    integer(int64), intent(in) :: extents(1)
    character(*), intent(in) :: name
    integer(int64), intent(in), optional :: version
    integer(int64), intent(out), optional :: got
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%observe_address(at, 8 * product(extents), name, version, got, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine observe_r8_1

  subroutine map_r8_2(self, a, extents, name, flags, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:, :)
    integer(int64), intent(in) :: extents(2)
    character(*), intent(in), optional :: name
    integer(c_int), intent(in), optional :: flags
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%map_address(at, 8 * product(extents), name, flags, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine map_r8_2

  subroutine observe_r8_2(self, a, extents, name, version, got, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:, :)
    integer(int64), intent(in) :: extents(2)
    character(*), intent(in) :: name
    integer(int64), intent(in), optional :: version
    integer(int64), intent(out), optional :: got
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%observe_address(at, 8 * product(extents), name, version, got, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine observe_r8_2

  subroutine map_r8_3(self, a, extents, name, flags, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:, :, :)
    integer(int64), intent(in) :: extents(3)
    character(*), intent(in), optional :: name
    integer(c_int), intent(in), optional :: flags
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%map_address(at, 8 * product(extents), name, flags, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine map_r8_3

  subroutine observe_r8_3(self, a, extents, name, version, got, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:, :, :)
    integer(int64), intent(in) :: extents(3)
    character(*), intent(in) :: name
    integer(int64), intent(in), optional :: version
    integer(int64), intent(out), optional :: got
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%observe_address(at, 8 * product(extents), name, version, got, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine observe_r8_3

  subroutine map_r4_1(self, a, extents, name, flags, status)
    class(nram_memory), intent(in) :: self
    real(real32), pointer, contiguous, intent(out) :: a(:)
    integer(int64), intent(in) :: extents(1)
    character(*), intent(in), optional :: name
    integer(c_int), intent(in), optional :: flags
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%map_address(at, 4 * product(extents), name, flags, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine map_r4_1

  subroutine observe_r4_1(self, a, extents, name, version, got, status)
    class(nram_memory), intent(in) :: self
    real(real32), pointer, contiguous, intent(out) :: a(:)
    integer(int64), intent(in) :: extents(1)
    character(*), intent(in) :: name
    integer(int64), intent(in), optional :: version
    integer(int64), intent(out), optional :: got
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%observe_address(at, 4 * product(extents), name, version, got, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine observe_r4_1

  subroutine map_r4_2(self, a, extents, name, flags, status)
    class(nram_memory), intent(in) :: self
    real(real32), pointer, contiguous, intent(out) :: a(:, :)
    integer(int64), intent(in) :: extents(2)
    character(*), intent(in), optional :: name
    integer(c_int), intent(in), optional :: flags
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%map_address(at, 4 * product(extents), name, flags, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine map_r4_2

  subroutine observe_r4_2(self, a, extents, name, version, got, status)
    class(nram_memory), intent(in) :: self
    real(real32), pointer, contiguous, intent(out) :: a(:, :)
    integer(int64), intent(in) :: extents(2)
    character(*), intent(in) :: name
    integer(int64), intent(in), optional :: version
    integer(int64), intent(out), optional :: got
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%observe_address(at, 4 * product(extents), name, version, got, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine observe_r4_2

  subroutine map_i4_1(self, a, extents, name, flags, status)
    class(nram_memory), intent(in) :: self
    integer(int32), pointer, contiguous, intent(out) :: a(:)
    integer(int64), intent(in) :: extents(1)
    character(*), intent(in), optional :: name
    integer(c_int), intent(in), optional :: flags
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%map_address(at, 4 * product(extents), name, flags, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine map_i4_1

  subroutine observe_i4_1(self, a, extents, name, version, got, status)
    class(nram_memory), intent(in) :: self
    integer(int32), pointer, contiguous, intent(out) :: a(:)
    integer(int64), intent(in) :: extents(1)
    character(*), intent(in) :: name
    integer(int64), intent(in), optional :: version
    integer(int64), intent(out), optional :: got
    integer, intent(out), optional :: status
    type(c_ptr) :: at
    nullify (a)
    call self%observe_address(at, 4 * product(extents), name, version, got, status)
    if (c_associated(at)) call c_f_pointer(at, a, extents)
  end subroutine observe_i4_1

  ! --- what versions say of arrays, for each kind.

  function described_r8(name, a) result(described)
    character(*), intent(in) :: name
    real(real64), intent(in), target, contiguous :: a(..)
    type(nram_array) :: described
    described = described_at(name, c_loc(a), element_float64, shape(a, int64))
  end function described_r8

  function described_r4(name, a) result(described)
    character(*), intent(in) :: name
    real(real32), intent(in), target, contiguous :: a(..)
    type(nram_array) :: described
    described = described_at(name, c_loc(a), element_float32, shape(a, int64))
  end function described_r4

  function described_i4(name, a) result(described)
    character(*), intent(in) :: name
    integer(int32), intent(in), target, contiguous :: a(..)
    type(nram_array) :: described
    described = described_at(name, c_loc(a), element_int32, shape(a, int64))
  end function described_i4

  function described_i8(name, a) result(described)
    character(*), intent(in) :: name
    integer(int64), intent(in), target, contiguous :: a(..)
    type(nram_array) :: described
    described = described_at(name, c_loc(a), element_int64, shape(a, int64))
  end function described_i8

  function described_at(name, at, element, extents) result(described)
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: at
    integer(c_int), intent(in) :: element
    integer(int64), intent(in) :: extents(:)
    type(nram_array) :: described
    if (len_trim(name) > len(described%name) .or. size(extents) > dimensions_max) then
      write (error_unit, '(3a, i0, a, i0, a)') 'nram: described: "', trim(name), '": expected a name of at most ', &
        len(described%name), ' bytes, and at most ', dimensions_max, ' dimensions'
      error stop 1
    end if
    described%name = name
    ! Where nothing is does not matter.
    if (all(extents > 0)) described%data = at
    described%element = element
    described%dimensions = size(extents)
    described%extents(1:size(extents)) = extents
  end function described_at

  ! An array in C's order has its extents the other way round here: so the first index is the fastest in any case.
  subroutine find_array(self, at, name, element, dimensions, found, status)
    class(nram_memory), intent(in) :: self
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer(c_int), intent(in) :: element
    integer, intent(in) :: dimensions
    type(array_t), intent(out) :: found
    integer, intent(out), optional :: status
    character(kind=c_char), allocatable, target :: c_name(:)
    character(128) :: what
    logical :: ok
    allocate (c_name, source=to_c(name))
    found%size = c_sizeof(found)
    ok = c_nram_find_array(self%handle, at, c_loc(c_name), found) == 0
    call finish(ok, 'find', status)
    if (.not. ok) then
      found%data = c_null_ptr
    else if (.not. c_associated(found%data)) then
      call refuse('find: "'//name//'" is in another mapping of the version than the first, which is the one observed', &
                  status)
    else if (found%element /= element .or. found%dimensions /= dimensions) then
      found%data = c_null_ptr
      write (what, '(a, i0, a, i0, a, i0, a, i0)') '" has elements of type ', found%element, ' (nram_element) in ', &
        found%dimensions, ' dimensions; the pointer is for type ', element, ' in ', dimensions
      call refuse('find: "'//name//trim(what), status)
    else if (found%order == 0) then
      found%extents(1:dimensions) = found%extents(dimensions:1:-1)
    end if
  end subroutine find_array

  subroutine find_r8_0(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, intent(out) :: a
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_float64, 0, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a)
  end subroutine find_r8_0

  subroutine find_r8_1(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:)
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_float64, 1, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a, found%extents(1:1))
  end subroutine find_r8_1

  subroutine find_r8_2(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:, :)
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_float64, 2, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a, found%extents(1:2))
  end subroutine find_r8_2

  subroutine find_r8_3(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    real(real64), pointer, contiguous, intent(out) :: a(:, :, :)
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_float64, 3, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a, found%extents(1:3))
  end subroutine find_r8_3

  subroutine find_r4_1(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    real(real32), pointer, contiguous, intent(out) :: a(:)
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_float32, 1, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a, found%extents(1:1))
  end subroutine find_r4_1

  subroutine find_r4_2(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    real(real32), pointer, contiguous, intent(out) :: a(:, :)
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_float32, 2, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a, found%extents(1:2))
  end subroutine find_r4_2

  subroutine find_i4_0(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    integer(int32), pointer, intent(out) :: a
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_int32, 0, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a)
  end subroutine find_i4_0

  subroutine find_i4_1(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    integer(int32), pointer, contiguous, intent(out) :: a(:)
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_int32, 1, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a, found%extents(1:1))
  end subroutine find_i4_1

  subroutine find_i8_0(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    integer(int64), pointer, intent(out) :: a
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_int64, 0, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a)
  end subroutine find_i8_0

  subroutine find_i8_1(self, a, at, name, status)
    class(nram_memory), intent(in) :: self
    integer(int64), pointer, contiguous, intent(out) :: a(:)
    type(c_ptr), intent(in) :: at
    character(*), intent(in) :: name
    integer, intent(out), optional :: status
    type(array_t) :: found
    nullify (a)
    call find_array(self, at, name, element_int64, 1, found, status)
    if (c_associated(found%data)) call c_f_pointer(found%data, a, found%extents(1:1))
  end subroutine find_i8_1

end module nram
