! The solver and the observers of client/examples/heat.cc in Fortran. Each observer reads the versions of both solvers.
!
!   heat solve|watch|plot [N [STEPS [EVERY [BUDGET_MIB]]]]
!
! The solver ends at the end of its standard input, and its plate is freed. A checkpoint is one more observer:
! `nram checkpoint heat DIRECTORY`.
program heat
  use, intrinsic :: iso_c_binding, only: c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: real64, int64, error_unit
  use nram
  implicit none
  integer(int64) :: n = 512, steps = 200, every = 10, budget_mib = 8
  type(nram_memory) :: memory
  character(16) :: role

  call get_command_argument(1, role)
  call number_of(2, n)
  call number_of(3, steps)
  call number_of(4, every)
  call number_of(5, budget_mib)
  call memory%open(budget=budget_mib * 1048576_int64)
  select case (role)
  case ('solve')
    call solve()
  case ('watch')
    call watch(plots=.false.)
  case ('plot')
    call watch(plots=.true.)
  case default
    write (error_unit, '(a)') 'usage: heat solve|watch|plot [N [STEPS [EVERY [BUDGET_MIB]]]]'
    stop 2
  end select
  call memory%close()

contains

  subroutine number_of(i, value)
    integer, intent(in) :: i
    integer(int64), intent(inout) :: value
    character(32) :: text
    integer :: failed
    if (i > command_argument_count()) return
    call get_command_argument(i, text)
    read (text, *, iostat=failed) value
    if (failed /= 0 .or. value < 1) then
      write (error_unit, '(3a)') 'heat: "', trim(text), '": expected a number from 1 on'
      stop 2
    end if
  end subroutine number_of

  ! All programs add in this order, because the sums are compared to the last bit.
  function sum_of(u, extent) result(total)
    integer(int64), intent(in) :: extent
    real(real64), intent(in) :: u(extent, extent)
    real(real64) :: total
    integer(int64) :: i, j
    total = 0
    do i = 1, extent
      do j = 1, extent
        total = total + u(j, i)
      end do
    end do
  end function sum_of

  ! One mapping has the plate and, behind it, two numbers for the observers.
  subroutine solve()
    real(real64), pointer, contiguous :: words(:), u(:, :)
    real(real64), pointer :: total
    integer(int64), pointer :: last
    type(nram_array) :: arrays(3)
    integer(int64) :: step, i, j
    integer :: ended
    call memory%map(words, [n * n + 2], 'heat')
    u(1:n, 1:n) => words(1:n * n)
    total => words(n * n + 1)
    call c_f_pointer(c_loc(words(n * n + 2)), last)
    arrays = [nram_described('temperature', u), nram_described('sum', total), nram_described('steps', last)]
    u(:, 1) = 100
    last = steps
    do step = 1, steps
      do i = 2, n - 1
        do j = 2, n - 1
          u(j, i) = 0.25_real64 * (u(j, i - 1) + u(j, i + 1) + u(j - 1, i) + u(j + 1, i))
        end do
      end do
      if (mod(step, every) == 0 .or. step == steps) then
        total = sum_of(u, n)
        call memory%publish(words, step=step, arrays=arrays)
      end if
    end do
    call memory%published(words, timeout_ms=60000)
    print '(a)', 'published'
    flush (6)
    do
      read (*, *, iostat=ended)
      if (ended < 0) exit
    end do
  end subroutine solve

  ! One character for each cell of the plate: the hotter the cell, the darker the character.
  subroutine draw(u, extent)
    integer(int64), intent(in) :: extent
    real(real64), intent(in) :: u(extent, extent)
    integer(int64), parameter :: rows = 24, columns = 64
    character(*), parameter :: shades = ' .:-=+*#%@'
    character(columns) :: line
    integer(int64) :: row, column
    integer :: shade
    do row = 0, rows - 1
      do column = 0, columns - 1
        shade = min(max(int(u(column * extent / columns + 1, row * extent / rows + 1) / 10) + 1, 1), len(shades))
        line(column + 1:column + 1) = shades(shade:shade)
      end do
      print '(a)', line
    end do
  end subroutine draw

  ! Finds the arrays by their names; a found pointer has the extents.
  subroutine watch(plots)
    logical, intent(in) :: plots
    type(c_ptr) :: plate
    real(real64), pointer, contiguous :: u(:, :)
    real(real64), pointer :: total
    integer(int64), pointer :: last
    integer(int64) :: version, extent, step
    integer :: status, tries
    do tries = 1, 600
      call memory%observe_address(plate, 0_int64, 'heat', got=version, status=status)
      if (status /= nram_enoent) exit
      if (tries == 1) write (error_unit, '(a)') 'waiting for a solver to publish "heat"'
      call execute_command_line('sleep 0.05')
    end do
    if (status /= 0) then
      write (error_unit, '(2a)') 'heat: ', nram_message()
      error stop 1
    end if
    do
      call memory%find(u, plate, 'temperature')
      call memory%find(total, plate, 'sum')
      call memory%find(last, plate, 'steps')
      step = memory%step_of(plate)
      extent = size(u, 1, int64)
      if (size(u, 2, int64) /= extent) error stop 'heat: the plate is not square'
      if (transfer(sum_of(u, extent), 0_int64) /= transfer(total, 0_int64)) &
        error stop 'heat: this is no state that the solver has published'
      if (plots) call draw(u, extent)
      print '(a, i0, a, i0, a, i0, a, f0.6, a)', 'version ', version, ': step ', step, ' of ', last, ', mean ', &
        total / real(extent * extent, real64), ', as the solver says'
      flush (6)
      if (step == last) exit
      call memory%next_address(plate, 60000, version)
      if (version == 0) error stop 'heat: no newer version for a minute'
    end do
  end subroutine watch

end program heat
